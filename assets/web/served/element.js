// <specviz-served>: what a server says of its own speculation, pasted, dropped or opened: answers, a log, /metrics.
//
// Takes { kind: "served", … } and { kind: "refused", text } of specviz/views/served_messages.py. Fires `specviz-ask-served`
// with { text, chains, speedups, answer }: `answer` takes the message, or null where nobody answers. What is refused leaves the
// figures on the screen as they are. `state` shows what it holds.

import { make, setText } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { bytesOf, textOf } from "./encodings.js";
import { diagnosisPart, renderDiagnosis } from "./diagnosis.js";
import { gammaPart, renderGamma } from "./gamma.js";
import { passesPart, renderPasses } from "./passes.js";
import { renderRequests, requestsPart } from "./requests.js";

const sheets = await Promise.all(["../why/why.css", "served.css"].map((name) => sheet(new URL(name, import.meta.url))));

/** What is looked for, in an empty field. */
const EXAMPLE = '{"metrics": {"speculative_decoding": {"acceptance_histogram": …';

/** A longer text than this is kept, and not written into the field: nobody edits it there. */
const MOST_SHOWN = 20_000;

class SpecvizServed extends SpecvizElement {
  static sheets = sheets;

  /** @type {Record<string, any>} */
  state = { figures: null, text: "", cost: 0.1, ratio: 1 };
  /** @type {Record<string, any>} */
  ui = {};
  asked = 0;

  build() {
    const { ui, say } = this;
    const parts = [passesPart(this), diagnosisPart(this), gammaPart(this), requestsPart(this)];
    ui.field = make("textarea", { id: "metrics", rows: 5, spellcheck: "false", "aria-describedby": "problem", placeholder: EXAMPLE, part: "field",
      on: { input: (event) => this.typed(event), paste: (event) => this.pasted(event) } });
    ui.file = make("input", { type: "file", multiple: true, accept: ".json,.jsonl,.ndjson,.txt,.log,.prom", class: "hidden", part: "file", on: { change: () => this.opened(ui.file.files) } });
    ui.chains = make("input", { type: "checkbox", part: "chains", on: { change: () => this.state.text && this.ask() } });
    ui.speedups = make("input", { size: 12, spellcheck: "false", part: "speedups", on: { change: () => this.state.text && this.ask() } });
    ui.problem = make("p", { class: "note hidden", id: "problem", role: "alert", part: "problem" });
    ui.status = make("p", { class: "says", role: "status", part: "status" });
    ui.found = make("div", { class: "found hidden", part: "found" }, ...parts);
    const box = make("div", { class: "drop", on: { dragover: (event) => event.preventDefault(), drop: (event) => this.dropped(event) } },
      make("label", { for: "metrics", text: say("served.label") }), ui.field, ui.problem,
      make("div", { class: "actions" },
        make("button", { type: "button", class: "act", part: "read", text: say("served.read"), on: { click: () => this.ask() } }),
        make("button", { type: "button", class: "act", text: say("served.open"), on: { click: () => ui.file.click() } }), ui.file),
      make("label", { class: "wide" }, ui.chains, make("span", { text: say("served.chains") })),
      make("label", { class: "wide" }, ui.speedups, make("span", { text: say("doctor.speedup") })));
    this.shadow.append(make("div", { class: "view" }, make("details", { class: "card", part: "fold", on: { toggle: () => this.draw() } },
      make("summary", {}, make("h2", { text: say("served.title") })),
      make("p", { class: "lead", text: say("served.lead") }), box, ui.status, ui.found)));
  }

  get handlers() {
    return {
      /** @param {any} message */
      served: (message) => {
        this.state.figures = message;
        this.complain("");
        this.draw();
      },
      /** @param {any} message */
      refused: ({ text }) => this.complain(text),
    };
  }

  /** @param {string} text */
  complain(text) {
    setText(this.ui.problem, text);
    this.ui.problem.classList.toggle("hidden", !text);
    this.ui.field.setAttribute("aria-invalid", String(Boolean(text)));
  }

  /** Typing is read on request, a pasted text at once. @param {InputEvent} event */
  typed(event) {
    this.state.text = this.ui.field.value;
    if (event.inputType === "insertFromPaste") this.ask();
  }

  /** @param {ClipboardEvent} event */
  pasted(event) {
    const text = event.clipboardData?.getData("text") ?? "";
    if (text.length <= MOST_SHOWN) return;
    event.preventDefault();
    this.take(text);
  }

  /** @param {DragEvent} event */
  dropped(event) {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    this.opened(event.dataTransfer.files);
  }

  /** Several files are read as one. @param {FileList} files */
  async opened(files) {
    this.take((await Promise.all([...files].map(async (file) => textOf(await bytesOf(file))))).join("\n"));
    this.ui.file.value = "";
  }

  /** @param {string} text */
  take(text) {
    this.state.text = text;
    this.ui.field.value = text.length > MOST_SHOWN ? "" : text;
    this.ui.field.placeholder = text.length > MOST_SHOWN ? this.say("served.kept", { characters: text.length }) : EXAMPLE;
    this.ask();
  }

  ask() {
    const asked = (this.asked += 1);
    setText(this.ui.status, this.say("served.reading"));
    const answer = (/** @type {any} */ message) => {
      if (asked !== this.asked) return;
      setText(this.ui.status, "");
      this.receive(message ?? { kind: "refused", text: this.say("served.no_answer") });
    };
    this.tell("specviz-ask-served", { text: this.state.text, chains: this.ui.chains.checked, speedups: this.ui.speedups.value, answer });
  }

  draw() {
    const { figures } = this.state;
    if (!figures) return;
    this.ui.found.classList.remove("hidden");
    renderPasses(this, figures);
    renderDiagnosis(this, figures);
    renderGamma(this, figures);
    renderRequests(this, figures);
  }
}

/** @typedef {SpecvizServed} Host */

customElements.define("specviz-served", SpecvizServed);
