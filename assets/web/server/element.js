// <specviz-server>: an inference server that runs elsewhere: what it is, an answer of its round by round, and its own
// numbers, pasted.
//
// Takes { kind: "offer", fields, servers, most_tokens, plotly }: what the form begins with, the addresses that may be asked
// (null: any), what is asked at most, and where plotly.js is; and `about`, `watch`, `speed` and `lossless` of
// specviz/views/server_messages.py, each with a `phase`.
// Fires
//   specviz-ask-server   detail: { what, visit, form }: a kind of message, a name for this press of its button, and the fields
//   specviz-call         something quick; detail: { name, wanted, answer }: `stop_asking` ends what a visit asked for,
//                        `run_file` has a file of a run. answer(value) or answer(null)
// and, of the elements in it, specviz-ask-missing and specviz-ask-served. The key is in the field and in what is asked,
// and nowhere else.

import "../charts/element.js";
import "../run/element.js";
import "../served/element.js";
import { make, setText } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { renderResult, resultCard } from "./result.js";
import { renderWatch, watchCard } from "./watch.js";

/** @typedef {SpecvizServer} Host */
/** @typedef {import("../shared/element.js").Message} Message */

const sheets = await Promise.all(["../why/why.css", "server.css"].map((name) => sheet(new URL(name, import.meta.url))));

/** An address, in an empty field. */
const EXAMPLE = "http://localhost:8080";

/** What a server says of itself, in the order of the page. */
const FACTS = ["engine", "version", "model", "drafter", "depth", "slots", "context", "sampling"];

class SpecvizServer extends SpecvizElement {
  static sheets = sheets;

  /** @type {Record<string, any>} nodes: fields, the problem below each, the parts of cards by what they ask for */
  ui = { fields: {}, problems: {}, cards: {} };
  /** @type {Record<string, any>} */
  texts = {};
  /** @type {Record<string, any>} */
  offer = {};
  /** @type {{ what: string, visit: string } | null} what is being asked */
  asking = null;
  watched = ""; // the run on the screen

  /** @param {Record<string, any>} texts the elements in it say them, too */
  set words(texts) {
    this.texts = texts;
    super.words = texts;
  }

  build() {
    const { ui, say } = this;
    const entered = { spellcheck: "false", autocomplete: "off", autocapitalize: "none" };
    ui.address = make("div", { class: "whole" }, this.field("server", make("input", { ...entered, inputmode: "url", placeholder: EXAMPLE, on: {
      keydown: (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && !this.asking && this.ask("about") } })));
    ui.closed = make("p", { class: "note hidden", text: say("server.closed"), part: "closed" });
    ui.facts = make("dl", { class: "readout facts hidden", part: "facts" });
    ui.form = make("div", {}, make("div", { class: "typed where" }, ui.address,
      this.field("server_key", make("input", { ...entered, type: "password" })), this.field("server_model", make("input", entered)),
      this.field("plain", make("input", { ...entered, inputmode: "url" }))), this.action("about"));
    const served = make("specviz-served", { slot: "served" });
    served.words = this.texts;
    this.append(served);
    this.shadow.append(make("div", { class: "view" },
      make("section", { class: "card", "aria-label": say("server.title") }, make("h2", { text: say("server.title") }),
        make("p", { class: "lead", text: say("server.lead") }), ui.closed, ui.form, ui.facts),
      watchCard(this), resultCard(this, "speed"), resultCard(this, "lossless", make("div", { class: "typed" }, this.field("reference", make("select")))),
      make("slot", { name: "served" })));
  }

  get handlers() {
    return {
      /** @param {Message} message */
      offer: (message) => {
        const { ui } = this;
        this.offer = message;
        for (const [name, value] of Object.entries(message.fields)) ui.fields[name].value = value;
        ui.fields.reference.replaceChildren(...message.references.map((/** @type {string} */ value) => make("option", { value, text: this.say(`server.by_${value}`) })));
        ui.fields.max_new_tokens.max = message.most_tokens;
        const { servers } = message;
        ui.closed.classList.toggle("hidden", servers?.length !== 0);
        for (const [what, text] of Object.entries(message.limits)) setText(ui.cards[what].limits, text);
        for (const part of [ui.form, ...Object.values(ui.cards).flatMap(({ card }) => card ?? [])]) part.classList.toggle("hidden", servers?.length === 0);
        if (servers?.length) ui.address.replaceChildren(this.field("server",
          make("select", {}, ...servers.map((/** @type {string} */ url) => make("option", { text: url })))));
      },
      about: (/** @type {Message} */ message) => this.tellAbout(message),
      watch: (/** @type {Message} */ message) => this.tellAbout(message, () => renderWatch(this, message)),
      speed: (/** @type {Message} */ message) => this.tellAbout(message),
      lossless: (/** @type {Message} */ message) => this.tellAbout(message),
    };
  }

  // --- what its cards are made of ---------------------------------------------------------------------------------------

  /** A field with its label, and the place of what is wrong with it. @param {string} name @param {any} input */
  field(name, input) {
    const { ui, say } = this;
    input.id = name;
    input.setAttribute("part", name);
    input.setAttribute("aria-describedby", `problem-${name}`);
    ui.fields[name] = input;
    ui.problems[name] = make("p", { class: "problem", id: `problem-${name}`, role: "alert" });
    return make("div", { class: "field" }, make("label", { for: name, text: say(`server.${name}`) }), input, ui.problems[name]);
  }

  /** The button that asks, the one that stops it, and what is going on. @param {string} what */
  action(what) {
    const go = make("button", { type: "button", class: "act", part: `ask-${what}`, text: this.say(`server.ask_${what}`), on: { click: () => this.ask(what) } });
    const stop = make("button", { type: "button", class: "act hidden", part: `stop-${what}`, text: this.say("server.stop"), on: { click: () => this.stop() } });
    const says = make("p", { class: "says", role: "status", part: `${what}-status` });
    this.ui.cards[what] = { ...this.ui.cards[what], go, stop, says };
    return make("div", { class: "actions" }, go, stop, says);
  }

  // --- asking -----------------------------------------------------------------------------------------------------------

  /** @param {string} what */
  ask(what) {
    const { fields, problems, cards } = this.ui;
    const form = Object.fromEntries(Object.entries(fields).map(([name, input]) =>
      [name, input.type === "checkbox" ? input.checked : input.type === "number" ? input.valueAsNumber : input.value]));
    for (const name of Object.keys(problems)) this.complain(name, "");
    this.asking = { what, visit: `${Math.random()}${Math.random()}` };
    setText(cards[what].says, this.say("server.connecting"));
    this.showBusy();
    this.tell("specviz-ask-server", { ...this.asking, form });
  }

  stop() {
    this.call("stop_asking", { visit: this.asking?.visit }, () => {});
  }

  /** @param {string} name @param {any} wanted @param {(value: any) => void} answer */
  call(name, wanted, answer) {
    this.tell("specviz-call", { name, wanted, answer });
  }

  showBusy() {
    for (const [what, { go, stop }] of Object.entries(this.ui.cards)) {
      const own = this.asking?.what === what;
      const held = this.shadow.activeElement === (own ? go : stop); // whoever presses by key keeps their place
      go.disabled = Boolean(this.asking);
      go.classList.toggle("hidden", own);
      stop.classList.toggle("hidden", !own);
      if (held && own !== (this.shadow.activeElement === stop)) (own ? stop : go).focus();
    }
  }

  /**
   * What every answer tells: what runs there, what it comes to, what is wrong, and whether it is over. Without anything
   * about the server it has not said a word yet, and what was there before stays.
   *
   * @param {Message} message @param {() => void} [render]
   */
  tellAbout(message, render) {
    const { kind, phase, about, problem, status } = message;
    if (status) setText(this.ui.cards[kind].says, status);
    if (about) {
      this.renderFacts(about);
      if (kind !== "about") renderResult(this, message);
      render?.();
    }
    if (phase === "running") return;
    this.asking = null;
    this.showBusy();
    this.ui.cards[kind].track?.classList.add("idle");
    if (!about || kind === "about") setText(this.ui.cards[kind].says, problem && !(problem.field in this.ui.problems) ? problem.text : "");
    if (problem) this.complain(problem.field, problem.text, !about); // whoever looks at a result stays with it
  }

  /** @param {string} name of a field @param {string} text what is wrong with it @param {boolean} [lead] the reader there */
  complain(name, text, lead = false) {
    const input = this.ui.fields[name];
    if (!input) return;
    setText(this.ui.problems[name], text);
    input.setAttribute("aria-invalid", String(Boolean(text)));
    if (!lead) return;
    input.scrollIntoView({ block: "center" });
    input.focus({ preventScroll: true });
  }

  /** @param {Record<string, string | null>} about */
  renderFacts(about) {
    const { ui, say } = this;
    ui.facts.classList.remove("hidden");
    ui.facts.replaceChildren(...FACTS.map((name) => make("div", { "data-fact": name },
      make("dt", { text: say(`server.fact_${name}`) }), make("dd", { text: about[name] ?? say("why.not_known") }))));
  }
}

customElements.define("specviz-server", SpecvizServer);
