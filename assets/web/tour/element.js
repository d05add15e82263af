// <specviz-tour>: the guided tour. Eight steps, each of which does something on the page and then says what it measured.
//
// Takes { kind: "plan", prompts, new_tokens, short_draft, long_draft }: what to run with. It asks for runs by
// `specviz-press` with { settings, press, measure }, hears by `specviz-refused` why none begins, and follows the page's
// <specviz-run>. `page` tells it of the page around it (page.js). Its getters show where it is.

import { make } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { keep, kept } from "../shared/kept.js";
import { liveRun } from "../shared/live.js";
import { Left, Waits, run } from "./asking.js";
import { BARE_PAGE, bring, ring } from "./page.js";
import { STEPS } from "./steps.js";

/** @typedef {import("./steps.js").Shown} Shown */

const sheets = [await sheet(new URL("tour.css", import.meta.url))];

/** Where a visitor was before a reload. */
function keptStep() {
  const step = kept("tour");
  return Number.isInteger(step) && step > 0 && step < STEPS.length ? step : 0;
}

export class SpecvizTour extends SpecvizElement {
  static sheets = sheets;

  /** @type {import("./page.js").TourPage} */
  page = BARE_PAGE;
  /** @type {any} what to run with */
  plan = {};
  waits = new Waits();
  isOpen = false;
  step = keptStep();
  /** @type {Map<number, Shown>} by step: what its button brought */
  shown = new Map();
  /** @type {string | null} why the button of this step brought nothing */
  failure = null;
  /** @type {string | null} why the page refused the run that was asked for last */
  refusal = null;
  /** @type {object | null} the showing in progress; it ends when the visitor goes on */
  showing = null;
  /** @type {string | null} what stands in the panel's box */
  written = null;
  /** a token of the live view is pinned by the tour */
  chose = false;
  /** @type {boolean | null} whether the visitor wants speedups measured; the tour's runs go by their step */
  measured = null;
  /** @type {object | null} what the page's controls said before the tour's first run */
  stood = null;
  /** @type {() => void} ends the watching of the page */
  unwatch = () => {};
  /** @type {any} the nodes drawn into */
  ui = {};

  /** What the step on the screen says it measured; null before. */
  get said() { return this.shown.get(this.step)?.said ?? null; }

  connected() {
    this.listen(document, "specviz-finished", () => this.onPage());
    this.listen(document, "specviz-refused", ({ detail }) => {
      this.refusal = detail.sentence;
      this.onPage();
    });
    this.listen(document, "specviz-set", ({ detail }) => {
      // The first of the tour's own changes.
      if (this.measured !== null) this.stood ??= detail.before;
    });
    // A reload in the middle brings back what the visitor had, not what the tour ran: after all others have heard of it.
    this.listen(document, "specviz-share", () => queueMicrotask(() => this.stood && keep("settings", this.stood)));
    this.listen(window, "resize", () => this.dock());
  }

  get handlers() {
    return { plan: (/** @type {any} */ message) => { this.plan = message; } };
  }

  // --- the panel ------------------------------------------------------------------------------------------------------

  build() {
    const { ui, say } = this;
    ui.opener = make("button", { class: "opener", type: "button", part: "opener", "aria-expanded": "false", "aria-controls": "panel", on: { click: () => (this.isOpen ? this.close() : this.open()) } });
    ui.progress = make("span", { class: "progress", part: "progress" });
    ui.dots = make("span", { class: "dots", "aria-hidden": "true" }, ...STEPS.map(() => make("i")));
    ui.title = make("h2", { tabindex: "-1", part: "title", id: "title" });
    ui.text = make("p", { class: "text", part: "text" });
    ui.said = make("div", { class: "said", role: "status", "aria-live": "polite", part: "said" });
    ui.back = make("button", { type: "button", part: "back", text: say("tour.back"), on: { click: () => this.go(this.step - 1) } });
    ui.show = make("button", { class: "show", type: "button", part: "show", on: { click: () => this.show() } });
    ui.lab = make("button", { type: "button", part: "lab", on: { click: () => this.page.openTab(STEPS[this.step].lab ?? "") } });
    ui.next = make("button", { type: "button", part: "next", on: { click: () => this.next() } });
    const shut = make("button", { class: "close", type: "button", part: "close", "aria-label": say("tour.close"), text: "×", on: { click: () => this.close() } });
    ui.panel = make("section", { class: "panel", part: "panel", id: "panel", role: "dialog", "aria-label": say("tour.name"),
      "aria-describedby": "title", hidden: true, on: { keydown: (/** @type {any} */ event) => this.onKey(event) } },
      make("div", { class: "top" }, ui.progress, ui.dots, shut),
      // It may scroll, and no key does that from the buttons.
      make("div", { class: "body", part: "body", role: "region", tabindex: "0", "aria-labelledby": "title" },
        make("div", { class: "explains" }, ui.title, ui.text), ui.said),
      make("div", { class: "actions" }, ui.back, ui.show, ui.lab, ui.next));
    this.shadow.append(ui.opener, ui.panel);
    new ResizeObserver(() => this.dock()).observe(ui.panel);
    this.renderOpener();
  }

  /** Leaves the page room to scroll clear of the panel. */
  dock() {
    if (!this.built) return;
    const height = this.isOpen ? window.innerHeight - this.ui.panel.getBoundingClientRect().top : 0;
    document.documentElement.style.setProperty("--sv-dock", `${Math.ceil(height)}px`);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.close();
  }

  render() {
    const { ui, say, step } = this;
    const { name, lab } = STEPS[step];
    ui.progress.textContent = say("tour.progress", { n: step + 1, count: STEPS.length });
    [...ui.dots.children].forEach((dot, place) => dot.classList.toggle("on", place <= step));
    ui.title.textContent = say(`tour.${name}_title`);
    ui.text.textContent = say(`tour.${name}_text`);
    ui.back.disabled = step === 0;
    ui.next.textContent = step === STEPS.length - 1 ? say("tour.finish") : say("tour.next");
    const leads = Boolean(lab && this.page.hasTab(lab));
    ui.lab.hidden = !leads;
    ui.lab.textContent = leads ? say(`tour.${name}_lab`) : "";
    this.renderSaid();
    this.renderAction();
  }

  /** Written only when it changes: it is read aloud. */
  renderSaid() {
    const { ui, say } = this;
    const shown = this.shown.get(this.step);
    const [kind, text] = this.failure ? ["failed", say("tour.failed", { reason: this.failure })]
      : this.showing ? ["running", say("tour.running")] : shown ? ["measured", shown.said] : ["before", say("tour.before")];
    if (ui.said.dataset.kind === kind && this.written === text) return;
    ui.said.dataset.kind = kind;
    this.written = text;
    const head = kind === "measured" ? [make("b", { text: say("tour.measured") })] : [];
    ui.said.replaceChildren(...head, make("p", { text: text.replace(/ ([=<]) /g, "\u00a0$1\u00a0") })); // an equation stays on one line
  }

  /** The button that does it keeps the focus while it may not be pressed. */
  renderAction() {
    const { ui, say } = this;
    if (!this.isOpen) return;
    const done = this.shown.has(this.step);
    const waiting = Boolean(this.showing) || !this.page.idle();
    const text = this.showing ? say("tour.running") : this.failure ? say("tour.retry") : done ? say("tour.again") : say("tour.show");
    if (ui.show.textContent !== text) ui.show.textContent = text;
    ui.show.setAttribute("aria-disabled", String(waiting));
    ui.show.title = waiting && !this.showing ? say("tour.busy") : "";
    ui.show.classList.toggle("primary", !done);
    ui.next.classList.toggle("primary", done);
  }

  renderOpener() {
    const { ui, say, step } = this;
    ui.opener.textContent = step ? say("tour.resume", { n: step + 1, count: STEPS.length }) : say("tour.start");
    ui.opener.setAttribute("aria-expanded", String(this.isOpen));
  }

  // --- what a visitor does ----------------------------------------------------------------------------------------------

  open() {
    this.isOpen = true;
    this.unwatch = this.page.watch(() => this.onPage());
    this.ui.panel.hidden = false;
    this.go(this.step);
    this.renderOpener();
  }

  close() {
    this.leave();
    this.isOpen = false;
    this.ui.panel.hidden = true;
    this.unwatch();
    this.dock();
    this.bringBackControls();
    this.renderOpener();
    this.ui.opener.focus({ preventScroll: true });
  }

  next() {
    if (this.step < STEPS.length - 1) return this.go(this.step + 1);
    this.keepStep(0);
    return this.close();
  }

  /** @param {number} step */
  go(step) {
    this.leave();
    this.keepStep(step);
    this.render();
    this.ui.panel.querySelector(".body").scrollTop = 0;
    this.ui.title.focus({ preventScroll: true });
    this.dock();
  }

  /** @param {number} step */
  keepStep(step) {
    this.step = step;
    keep("tour", step);
  }

  /** Ends what this step does and shows on the page; a run in progress goes on by itself. */
  leave() {
    this.showing = null;
    this.failure = null;
    this.onPage();
    ring([]);
    if (this.chose) liveRun()?.release();
    this.chose = false;
  }

  async show() {
    if (this.showing || !this.page.idle()) return;
    const { step } = this;
    const showing = (this.showing = {});
    this.failure = null;
    ring([]);
    this.measured ??= this.page.measures();
    this.render();
    try {
      const shown = await STEPS[step].show(this, (settings, measure = false) => run(this, settings, measure, showing));
      await new Promise(requestAnimationFrame); // a tab that it has opened is laid out by then
      if (this.showing !== showing) return;
      this.shown.set(step, shown);
      this.point(shown);
    } catch (error) {
      if (error instanceof Left) return;
      this.failure = /** @type {Error} */ (error).message;
    }
    this.showing = null;
    this.render();
  }

  /** Chooses the token a step speaks about, rings what is worth a look, and brings it into sight. @param {Shown} shown */
  point(shown) {
    liveRun()?.showAll();
    if (shown.choice) {
      liveRun()?.choose(...shown.choice);
      this.chose = true;
    }
    const nodes = shown.rings();
    ring(nodes);
    const [first] = nodes;
    if (first) requestAnimationFrame(() => bring(this.ui.panel, first));
  }

  // --- the page ---------------------------------------------------------------------------------------------------------

  /** The page has changed, or time has passed. */
  onPage() {
    this.waits.look();
    if (this.built) this.renderAction();
  }

  /** When the tour closes, the controls stand as the visitor had them. */
  bringBackControls() {
    if (this.stood) this.tell("specviz-press", { settings: this.stood, press: null, measure: this.measured });
    Object.assign(this, { measured: null, stood: null });
  }
}

customElements.define("specviz-tour", SpecvizTour);
