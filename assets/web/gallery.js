// The recorded runs that come with the page: a card each; a press shows it in the live view, without a model.
//
// This file is the body of a gr.HTML component's js_on_load; `STYLE`, `TEXTS` and dom.js are put in front. Its value
// holds the cards and the name of the run that the page opens with; the live view tells which run it shows.

const host = element.querySelector(".specviz-gallery");
const shadow = host.attachShadow({ mode: "open" });
const { cards, shown } = JSON.parse(props.value);

const status = make("p", { class: "status", role: "status", "aria-live": "polite" });
const buttons = cards.map(({ name, title, about }) => make("button", { type: "button", class: "recording", "data-name": name,
  "aria-labelledby": `${name}-title`, "aria-describedby": `${name}-about`, on: { click: () => open(name) } },
  make("b", { id: `${name}-title`, text: title }), make("span", { id: `${name}-about`, text: about })));
shadow.append(make("style", { text: STYLE }),
  make("section", { "aria-labelledby": "title" },
    make("h3", { id: "title", text: say("gallery.title") }), make("p", { class: "quiet", text: say("gallery.about") }),
    make("div", { class: "cards" }, ...buttons), status));

function open(name) {
  const view = document.querySelector(".specviz-rounds");
  if (["waiting", "running"].includes(view.specviz.state)) {
    status.textContent = say("gallery.busy");
    return;
  }
  status.textContent = "";
  trigger("submit", { name });
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  view.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
}

function mark(name) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.name === name));
}

const live = document.querySelector(".specviz-rounds")?.specviz?.share;
mark(live ? live.recording : shown);
window.addEventListener("specviz:share", (event) => mark(event.detail.recording ?? null));
