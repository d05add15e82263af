// <specviz-challenges>: a few things to find out by oneself, each checked by what the page measures.
//
// Follows the page's <specviz-run> and <specviz-lossless>. Recorded runs and opened files do not count. `solved` holds, by
// name, the values of the sentence that says how.

import { make } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { keep, kept } from "../shared/kept.js";
import { CHALLENGES } from "./checks.js";

const TELLS = 12000; // ms that the page says what was solved just now

const sheets = [await sheet(new URL("challenges.css", import.meta.url))];

class SpecvizChallenges extends SpecvizElement {
  static sheets = sheets;

  /** @type {Record<string, import("./checks.js").Values>} */
  solved = kept("challenges") ?? {};
  /** @type {Map<string, import("./checks.js").Run>} the visitor's runs by key */
  runs = new Map();
  /** @type {any} the nodes drawn into */
  ui = {};

  connected() {
    this.listen(document, "specviz-finished", ({ detail }) => this.onRun(detail));
    this.listen(document, "specviz-tried", ({ detail }) => this.check((one) => one.trial?.(detail)));
  }

  build() {
    const { ui, say } = this;
    ui.opener = make("button", { class: "opener", type: "button", part: "opener", "aria-haspopup": "dialog", on: { click: () => this.open() } });
    ui.list = make("ol", { part: "list" });
    ui.dialog = make("dialog", { part: "dialog", "aria-labelledby": "title" },
      make("div", { class: "top" }, make("h2", { id: "title", text: say("challenges.title") }),
        make("button", { class: "close", type: "button", part: "close", "aria-label": say("challenges.close"), text: "×", on: { click: () => ui.dialog.close() } })),
      make("p", { text: say("challenges.lead") }), ui.list);
    ui.dialog.addEventListener("click", (event) => event.target === ui.dialog && ui.dialog.close());
    ui.told = make("p", { class: "told", role: "status", part: "told" });
    this.shadow.append(ui.opener, ui.dialog, ui.told);
    this.render();
  }

  open() {
    this.ui.told.textContent = "";
    this.ui.dialog.showModal();
  }

  /** @param {any} detail a run that has ended, or whose speedup has come */
  onRun({ run, start, rounds, figures }) {
    const settings = start.share?.settings;
    if (!settings || start.recorded || start.file) return;
    const made = { settings, figures, pair: start.pair };
    this.runs.delete(run);
    const earlier = [...this.runs.values()];
    this.runs.set(run, made);
    this.check((one) => one.run?.({ ...made, rounds }, earlier, this.say));
  }

  /** @param {(one: import("./checks.js").Challenge) => import("./checks.js").Values | null | undefined} met */
  check(met) {
    for (const one of CHALLENGES) {
      const values = this.solved[one.name] ? null : met(one);
      if (!values) continue;
      this.solved[one.name] = values;
      keep("challenges", this.solved);
      this.render();
      const text = `✓ ${this.say("challenges.solved_now", { title: this.say(`challenges.${one.name}_title`) })} ${this.say(`challenges.${one.name}_solved`, values)}`;
      this.ui.told.textContent = text;
      setTimeout(() => this.ui.told.textContent === text && (this.ui.told.textContent = ""), TELLS);
    }
  }

  render() {
    const { ui, say, solved } = this;
    const n = CHALLENGES.filter(({ name }) => solved[name]).length;
    const count = CHALLENGES.length;
    // On a phone's full head the sign alone.
    ui.opener.replaceChildren("⚑ ", make("span", { text: `${say("challenges.title")} ` }), `${n}/${count}`);
    ui.opener.title = say("challenges.title");
    ui.opener.setAttribute("aria-label", say("challenges.open", { n, count }));
    ui.list.replaceChildren(...CHALLENGES.map(({ name }) => make("li", { "data-challenge": name, "data-solved": Boolean(solved[name]) },
      make("h3", {}, ...(solved[name] ? ["✓ "] : []), say(`challenges.${name}_title`)), make("p", { text: say(`challenges.${name}_text`) }),
      ...(solved[name] ? [make("p", { class: "how", text: say(`challenges.${name}_solved`, solved[name]) })]
        : [make("details", {}, make("summary", { text: say("challenges.hint") }), make("p", { text: say(`challenges.${name}_hint`) }))]))));
  }
}

customElements.define("specviz-challenges", SpecvizChallenges);
