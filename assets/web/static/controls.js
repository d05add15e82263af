// What a run is asked for on the page without a server: prompt, drafter, γ, temperature; folded away, length and seed.

import { make } from "../shared/dom.js";

/** @typedef {import("../shared/words.js").Say} Say */
/** @typedef {import("./decoding.js").Settings & { measured: boolean }} Asked measured: whether the speedup is to be measured */

/** Of each number: least, most, step, and what it is at first. @type {Record<string, [number, number, number | "any", number]>} */
const NUMBERS = {
  num_draft_tokens: [1, 8, 1, 3], temperature: [0, 2, 0.1, 0.6], max_new_tokens: [1, 900, 1, 96], seed: [0, 2 ** 32 - 1, 1, 0],
};
const DRAFTERS = ["draft_model", "prompt_lookup", "plain"];

export class Controls {
  coins = ""; // set by hand in a close-up, for the next run only

  /**
   * @param {Say} say
   * @param {Record<string, string>} presets prompts by their names
   * @param {{ go: () => void, stop: () => void }} actions
   */
  constructor(say, presets, { go, stop }) {
    const number = (/** @type {string} */ name, /** @type {string} */ label) => {
      const [min, max, step, value] = NUMBERS[name];
      return this.#field(name, label, make("input", { type: "number", name, min, max, step: step === 0.1 ? "any" : step, value, required: true, inputmode: "decimal" }));
    };
    const drafter = make("select", { name: "drafter" }, ...DRAFTERS.map((name) => make("option", { value: name, text: say(`ways.${name}`) })));
    const prompt = make("textarea", { name: "prompt", required: true, maxlength: 8000, text: Object.values(presets)[0] });
    this.go = make("button", { class: "go", text: say("page.go") });
    this.stop = make("button", { type: "button", class: "go", hidden: true, text: say("page.stop"), on: { click: stop } });
    this.measured = make("input", { type: "checkbox", name: "measured", checked: true });
    this.bar = make("progress", { "aria-label": say("static.loading_bar"), max: 1, value: 0 });
    this.told = make("span");
    this.form = make("form", { "aria-label": say("controls.fields"), on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); go(); } } },
      // A phone shows the run first: there all fields are one tap away.
      make("details", { class: "fields", open: matchMedia("(min-width: 521px)").matches }, make("summary", { text: say("controls.fields") }),
        this.#field("prompt", say("controls.prompt"), prompt),
        make("div", { class: "presets" }, ...Object.entries(presets).map(([name, text]) =>
          make("button", { type: "button", text: say(`controls.preset_${name}`), on: { click: () => (prompt.value = text) } }))),
        make("div", { class: "row" }, this.#field("drafter", say("controls.drafter"), drafter), number("num_draft_tokens", say("static.gamma")),
          number("temperature", say("controls.temperature"))),
        make("details", {}, make("summary", { text: say("static.more") }),
          make("div", { class: "row" }, number("max_new_tokens", say("controls.max_new_tokens")), number("seed", say("controls.seed")),
            make("label", { class: "check" }, this.measured, say("page.measured"))))),
      this.go, this.stop,
      make("p", { class: "status", role: "status" }, this.bar, this.told));
    // Browsers say nothing of a wrong field that is folded away.
    this.form.addEventListener("invalid", ({ target }) => {
      for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    }, true);
  }

  /** @param {string} name @param {string} label @param {HTMLElement} input */
  #field(name, label, input) {
    return make("label", { "data-name": name }, make("span", { text: label }), input);
  }

  /** @returns {Asked} */
  get settings() {
    const held = Object.fromEntries(new FormData(this.form));
    const numbers = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, Number(held[name])]));
    return /** @type {any} */ ({ prompt: String(held.prompt), drafter: String(held.drafter), ...numbers, coins: this.coins, measured: this.measured.checked });
  }

  /** @param {Partial<Asked>} settings */
  set(settings) {
    for (const [name, value] of Object.entries(settings)) {
      const field = this.form.elements.namedItem(name);
      if (name === "coins") this.coins = String(value);
      else if (name === "measured") this.measured.checked = Boolean(value);
      else if (field) field.value = value;
    }
  }

  /** @param {boolean} running */
  show(running) {
    const [shown, other] = running ? [this.stop, this.go] : [this.go, this.stop];
    const pressed = other === document.activeElement;
    [shown.hidden, other.hidden] = [false, true];
    if (pressed) shown.focus(); // a button that hides would lose the focus
  }

  /** @param {string} text @param {number | null} share of what is loaded; null: no bar */
  tell(text, share = null) {
    this.told.textContent = text;
    this.bar.hidden = share === null;
    this.bar.value = share ?? 0;
  }
}
