// The link to the run on the screen, and what happens when the page is opened by one.
//
// This file is the body of a gr.HTML component's js_on_load; `STYLE`, `TEXTS` and dom.js are put in front. Its value
// names the page's pair and the run that the page opens with; the live view tells of every run that follows.

const host = element.querySelector(".specviz-share");
const shadow = host.attachShadow({ mode: "open" });
const { pair, share: first } = JSON.parse(props.value);
let share = document.querySelector(".specviz-rounds")?.specviz?.share ?? first;

const button = make("button", { type: "button", class: "copy", text: say("share.copy"), on: { click: copy } });
const box = make("input", { class: "link hidden", readonly: true, "aria-label": say("share.link"), on: { focus: () => box.select() } });
const status = make("p", { class: "status", role: "status", "aria-live": "polite" });
shadow.append(make("style", { text: STYLE }), button, box, status);

function linkTo(query) {
  return `${location.origin}${location.pathname}?${query}`;
}

/** Puts the link onto the clipboard, and in any case into a box of which it can be copied by hand. */
async function copy() {
  box.classList.toggle("hidden", share.query === null);
  if (share.query === null) {
    status.textContent = say("share.too_long");
    return;
  }
  box.value = linkTo(share.query);
  box.focus();
  box.select();
  const other = share.pair === pair ? "" : say("share.other_pair", { pair });
  status.textContent = [say((await copied(box.value)) ? "share.copied" : "share.by_hand"), other].filter(Boolean).join(" ");
}

async function copied(text) {
  if (!navigator.clipboard) return false; // browsers lend it to secure pages only
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // refused by the browser or its user
  }
}

/** A link that was copied is that of the run it was copied from: another run takes it away. */
window.addEventListener("specviz:share", (event) => {
  if (event.detail.query !== share.query) {
    box.classList.add("hidden");
    status.textContent = "";
  }
  share = event.detail;
});

if (location.search.length > 1) trigger("submit");
