// <specviz-run>: the live view of a run. Headline figures, the text with its provenance, every round, and the picture of one.
//
// Takes the messages of specviz/views/run_messages.py: `waiting`, `left`, `error`, `start`, `rounds`, `end`, and `trace`, which
// holds several; { kind: "pair", pair }: the name of the pair that the page uses now; and { kind: "server", answers }: whether
// the server answers, when that changes. Fires
//   specviz-finished     a run has ended, or its speedup came in; detail: { run, start, rounds, text, figures }
//   specviz-charts       what the charts draw now; detail: figures by their place
//   specviz-share        the link to the run; detail: as the message has it
//   specviz-ask-missing  rounds were lost on the way; detail: { run, first, count, answer }: answer([message, …]) fills
//                        them in, as long as the run is on the screen
//   specviz-ask-supposed what would have been, with the models that made the run; detail: { settings, pair, what, answer }:
//                        answer(message) brings that round, null none
//   specviz-branch       somebody has set a coin of the run on the screen by hand; detail: where, { round, index }
//   specviz-press        and wants the run that follows from it (gradio/remote.js)
// With the attribute `apart` it is not the page's own run: its key is not kept for a reload.
// Its getters show what it holds; the messages of `left` bring it back.

import { SpecvizElement, sheet } from "../shared/element.js";
import { chartsAfter } from "./charted.js";
import { choose, letGo, onChipClick, onFocus, onPointer, onTextClick, pin } from "./choosing.js";
import { draw, redraw, schedule } from "./drawing.js";
import { figuresBar } from "./figures.js";
import { onKey } from "./keys.js";
import { roundsCard } from "./list/list.js";
import { goToEnd, goToRound, goToStart, guess, layOutForPaper, onPlaybackKey, present, showAll, step, togglePlay, togglePredict, watchAgain } from "./playback/playback.js";
import { pictureCard } from "./picture/picture.js";
import { buildPresentation } from "./playback/present.js";
import { leftBehind } from "./left.js";
import { handlersOf } from "./receiving.js";
import { firstRejected } from "./record/records.js";
import { roundsOver } from "./place.js";
import { knownAt } from "./record/stages.js";
import { textCard } from "./list/text.js";
import { transportCard } from "./playback/transport.js";
import { make } from "../shared/dom.js";
import { momentStyle } from "../moment/moment.js";
import { View } from "./view.js";

/** @typedef {import("../shared/element.js").Message} Message */
/** @typedef {import("./types.js").Gap} Gap */
/** @typedef {import("./types.js").Index} Index */

const DRAW_EVERY = 150; // ms between two drawings of the charts
const SMALL = 520; // px below which it is a phone

const styles = ["run", "picture/picture", "playback/playback", "playback/present"];
const sheets = await Promise.all(styles.map((name) => sheet(new URL(`${name}.css`, import.meta.url))));

export class SpecvizRun extends SpecvizElement {
  static sheets = [...sheets, momentStyle];

  connected() {
    this.listen(document, "keydown", (event) => this.view && this.actions && onPlaybackKey(this.view, event, this.actions));
    this.listen(window, "beforeprint", () => this.view && layOutForPaper(this.view));
  }

  build() {
    this.view = new View(this, this.shadow, this.say);
    /** @type {any} the last of what was told, for those that come later than this one */
    this.told = { share: null, charts: {} };
    this.receiving = handlersOf(this.view, (gap) => this.ask(gap));
    this.layOut(this.view);
    redraw(this.view);
    draw(this.view);
  }

  /** @param {View} view */
  layOut(view) {
    const actions = {
      step: (/** @type {number} */ direction) => step(view, direction),
      goToStart: () => goToStart(view),
      goToEnd: () => goToEnd(view),
      watchAgain: () => watchAgain(view),
      goToRound: (/** @type {number} */ count) => goToRound(view, count),
      togglePlay: () => togglePlay(view),
      openPresentation: () => present(view),
      togglePredict: () => togglePredict(view),
      guess: (/** @type {string | null} */ value) => guess(view, value),
    };
    const { ui } = view;
    ui.frames = make("div", { class: "frame" }, textCard(view), pictureCard(view, { choose, letGo }), transportCard(view, actions), roundsCard(view));
    ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, figuresBar(view), ui.frames);
    this.shadow.append(ui.view);
    buildPresentation(view);
    ui.text.addEventListener("click", (/** @type {any} */ event) => onTextClick(view, event));
    ui.rounds.addEventListener("click", (/** @type {any} */ event) => onChipClick(view, event));
    ui.rounds.addEventListener("focusin", (/** @type {any} */ event) => onFocus(view, event));
    ui.rounds.addEventListener("keydown", (/** @type {any} */ event) => onKey(view, event));
    for (const box of [ui.text, ui.rounds]) box.addEventListener("pointermove", (/** @type {any} */ event) => onPointer(view, event));
    this.actions = actions;
    const fit = (/** @type {number} */ width) => width && ui.view.toggleAttribute("data-small", width < SMALL); // 0: a hidden tab
    new ResizeObserver(([entry]) => fit(entry.contentRect.width)).observe(ui.view);
    fit(ui.view.clientWidth); // before it is painted: nothing moves
  }

  get handlers() {
    return this.receiving ?? {};
  }

  /** @param {Message} message */
  receive(message) {
    super.receive(message);
    if (!this.view || !message || !Object.hasOwn(this.handlers, message.kind)) return;
    if (["pair", "server"].includes(message.kind)) return schedule(this.view);
    Object.assign(this.told.charts, message.charts);
    if (message.charts && !this.view.playback.at) this.tell("specviz-charts", message.charts);
    else if (message.charts) this.tellCharts(true);
    if (message.share) {
      this.view.run.pair = message.share.pair ?? "";
      this.tell("specviz-share", (this.told.share = message.share));
    }
    // Again for the same run when its speedup was measured, or when rounds that were missing have come.
    if (this.finished) this.tell("specviz-finished", this.finished);
    schedule(this.view);
  }

  /** Charts follow the reader's place, a few times a second: plotly takes longer than a frame. @param {boolean} [anew] */
  tellCharts(anew = false) {
    const over = this.view && roundsOver(this.view);
    if (over === this.charted && !anew) return;
    this.charted = over;
    this.charting ||= setTimeout(() => {
      this.charting = 0;
      this.tell("specviz-charts", this.charts);
    }, DRAW_EVERY);
  }

  /** @param {Gap} gap */
  ask(gap) {
    const answer = (/** @type {Message[]} */ messages) => {
      if (this.view?.run.key === gap.run) messages.forEach((message) => this.receive(message));
    };
    this.tell("specviz-ask-missing", { ...gap, answer });
  }

  // --- what it holds ----------------------------------------------------------------------------------------------------

  get rounds() { return this.view?.run.rounds ?? []; }
  get text() { return this.view?.run.text ?? ""; }
  get prompt() { return this.view?.run.start.prompt; }
  get figures() { return this.view?.run.figures ?? {}; }
  /** "empty", "waiting", "running", "finished" or "error". */
  get state() { return this.view?.run.phase ?? "empty"; }
  /** Whether more is to come for the run on the screen, its measured speedup included. */
  get busy() { return this.view?.run.busy ?? false; }
  /** Why a run failed. */
  get note() { return this.view?.run.note ?? ""; }
  get recorded() { return Boolean(this.view?.run.start.recorded); }
  get share() { return this.told?.share ?? null; }
  /** As far as the reader's place. */
  get charts() {
    const charts = this.told?.charts ?? {};
    return this.view?.playback.at ? chartsAfter(charts, this.rounds.slice(0, roundsOver(this.view))) : charts;
  }
  /** The messages that bring back what it shows. @returns {Message[]} */
  get left() { return this.view ? leftBehind(this.view, this.told) : []; }
  get chosen() { return this.view?.chosen ?? null; }
  get pinned() { return this.view?.pinned ? this.view.chosen : null; }
  get missing() { return this.view?.run.missing ?? []; }
  get finished() { return this.view?.run.finished ?? null; }
  get playing() { return this.view?.playback.playing ?? false; }
  /** The reader's place: { round, stage, kind }, or null at the end. */
  get place() {
    const at = this.view?.playback.at;
    return this.view && at ? { ...at, kind: knownAt(this.view.run, at.round, at.stage).stage?.kind ?? "start" } : null;
  }

  // --- what others may do with it ---------------------------------------------------------------------------------------

  /** Whether there is such a token; without an index, such a round. @param {{ round: number, index: Index | null }} spot */
  has({ round, index }) {
    const there = this.rounds[round];
    return there != null && (index === null || index === "next" || there.drafted[index] !== undefined);
  }

  /** The token of a round that tells most: the first that was refused, or the target's own. @param {number} round @returns {Index} */
  telling(round) {
    const rejected = firstRejected(/** @type {import("./types.js").Round} */ (this.rounds[round]));
    return rejected < 0 ? "next" : rejected;
  }

  /** As a reader's click on a token. @param {number} round @param {Index} index */
  choose(round, index) {
    if (!this.view) return;
    draw(this.view); // the list may lag behind the messages
    pin(this.view, { round, index }, true);
  }

  /** Plays no further: all of the run stands there. */
  showAll() {
    if (!this.view) return;
    draw(this.view); // the list may lag behind the messages
    showAll(this.view);
  }

  /** Stands before a round, which waits for guesses. @param {number} round */
  predict(round) {
    if (!this.view) return;
    goToRound(this.view, round);
    if (!this.view.playback.predicting) togglePredict(this.view);
  }

  /** Shows large what is looked at. */
  present() {
    if (this.view) present(this.view);
  }

  release() {
    if (this.view) letGo(this.view, false);
  }
}

customElements.define("specviz-run", SpecvizRun);
