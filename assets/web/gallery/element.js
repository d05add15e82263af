// <specviz-gallery>: recorded runs, a card each.
//
// Takes { kind: "gallery", cards: [{ name, title, about }], shown: the name of the run on the screen }. Fires
// `specviz-choose`, detail: { name }, when a card is pressed, or the page's address asks for it. It follows the page's
// <specviz-run>: marks the run it shows, and asks for no other while one is on.

import { make, scrolling } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { liveRun } from "../shared/live.js";
import { linkedRecording } from "../shared/spot.js";

const sheets = [await sheet(new URL("gallery.css", import.meta.url))];

class SpecvizGallery extends SpecvizElement {
  static sheets = sheets;

  build() {
    this.status = make("p", { class: "status", role: "status", "aria-live": "polite" });
    this.cards = make("div", { class: "cards" });
    this.shadow.append(make("section", { "aria-labelledby": "title" },
      make("h3", { id: "title", text: this.say("gallery.title") }),
      make("p", { class: "quiet", text: this.say("gallery.about") }), this.cards, this.status));
  }

  connected() {
    this.listen(document, "specviz-share", (event) => this.mark(event.detail.recording ?? null));
  }

  get handlers() {
    return {
      /** @param {any} message */
      gallery: ({ cards, shown }) => {
        this.cards.replaceChildren(...cards.map((/** @type {any} */ one) => this.card(one)));
        const live = liveRun()?.share;
        const [open, name] = [live ? live.recording : shown, linkedRecording()];
        this.mark(open);
        if (name !== open && cards.some((/** @type {any} */ one) => one.name === name)) this.tell("specviz-choose", { name });
      },
    };
  }

  /** @param {{ name: string, title: string, about: string }} recording */
  card({ name, title, about }) {
    return make("button", { type: "button", class: "recording", "data-name": name, "aria-labelledby": `${name}-title`,
      "aria-describedby": `${name}-about`, on: { click: () => this.open(name) } },
      make("b", { id: `${name}-title`, text: title }), make("span", { id: `${name}-about`, text: about }));
  }

  /** @param {string} name */
  open(name) {
    const live = liveRun();
    const busy = Boolean(live?.busy);
    this.status.textContent = busy ? this.say("gallery.busy") : "";
    if (busy) return;
    this.tell("specviz-choose", { name });
    live?.scrollIntoView({ behavior: scrolling(), block: "start" });
  }

  /** @param {string | null} name */
  mark(name) {
    for (const button of this.cards?.children ?? []) button.setAttribute("aria-pressed", String(button.dataset.name === name));
  }
}

customElements.define("specviz-gallery", SpecvizGallery);
