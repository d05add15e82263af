// Playback: moves the reader's place, and brings the view to it.

import { choose, letChoiceGo } from "../choosing.js";
import { drawFigures } from "../figures.js";
import { chipAt, dressRows, fillAll, lookAgain, rowHere, setOpen } from "../list/list.js";
import { START, atEnd, endOf, forgetDrawn, lastPlace, spotHere } from "../place.js";
import { drawPicture } from "../picture/picture.js";
import { drawPredictions, isDue, noteGuess, questionAt } from "./predict.js";
import { drawPresentation, openPresentation } from "./present.js";
import { stageAt } from "../record/stages.js";
import { scrollFor, showText } from "../list/text.js";
import { isTold, noteSkipped, playsByItself, shownAfter, staysFor, wantsToWatch } from "./showing.js";
import { drawTransport } from "./transport.js";
import { showInTree } from "../list/tree_box.js";
import { isTree } from "../record/trees.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../view.js").Actions} Actions */
/** @typedef {import("../types.js").Place} Place */
/** @typedef {import("../types.js").Stage} Stage */

/** How long a stage stays at speed 1, ms: a class reads the sentence, the teacher says a word. */
const DWELL = { draft: 800, pass: 1600, decide: 2600, next: 2600, missing: 800 };

const DWELL_ROUND = 2000; // ms, where a step is a whole round

/** A new run: it is shown from its beginning, or followed; who predicts waits at its start. @param {View} view @param {boolean} shown */
export function resetPlayback(view, shown) {
  view.pause();
  const showing = shown && !view.playback.predicting && wantsToWatch();
  Object.assign(view.playback, { at: showing || view.playback.predicting ? START : null, showing, asking: null, guesses: new Map(), unfolded: null });
  forgetDrawn(view);
  if (showing && playsByItself()) playFrom(view);
}

/** Shows the run once more, from its beginning. @param {View} view */
export function watchAgain(view) {
  if (!view.drawn) return;
  view.pause();
  noteSkipped(false);
  view.playback.showing = true;
  moveTo(view, START);
  if (playsByItself()) playFrom(view);
}

/** @param {View} view @param {Stage} stage */
function stops(view, stage) {
  if (view.playback.unit === "token") return true;
  return view.playback.unit === "round" ? ["next", "missing"].includes(stage.kind) : stage.kind !== "draft";
}

/**
 * Where a step leads: to a place, or to the question before it.
 *
 * @param {View} view @param {Place} place @returns {{ at: Place, asking: Place | null } | null}
 */
function stopAfter(view, { round, stage }) {
  for (;;) {
    const at = { round, stage };
    if (stage === endOf(view.run, round).stage) [round, stage] = [round + 1, 0];
    if (round >= view.drawn) return null;
    stage += 1;
    const next = { round, stage };
    if (isDue(view, next)) return { at, asking: next };
    if (stops(view, stageAt(view.run, next))) return { at: next, asking: null };
  }
}

/** @param {View} view @param {Place} place */
function placeBefore(view, { round, stage }) {
  for (;;) {
    stage -= 1;
    if (stage < 1 && round === 0) return START;
    if (stage < 1) ({ round, stage } = endOf(view.run, round - 1));
    if (stops(view, stageAt(view.run, { round, stage }))) return { round, stage };
  }
}

/**
 * Goes to a place, null being the end, at most once a frame; and asks what comes at another.
 *
 * @param {View} view @param {Place | null} at @param {Place | null} [asking]
 */
function moveTo(view, at, asking = null) {
  Object.assign(view.playback, { at, asking });
  if (!view.playback.frame) view.playback.frame = requestAnimationFrame(() => {
    view.playback.frame = 0;
    showPlace(view);
  });
}

/** @param {View} view @param {number} direction */
export function step(view, direction) {
  const { at, asking, unit, predicting } = view.playback;
  if (!view.drawn || (asking && direction > 0)) return; // it takes a guess, or "show it"
  leaveShow(view);
  view.playback.telling = unit !== "round" || predicting;
  if (direction < 0) moveTo(view, asking ? at : placeBefore(view, at ?? lastPlace(view)));
  else if (at) goOn(view, at);
}

/** To the next stop, or the end; whoever predicts does not overtake a run that goes on. @param {View} view @param {Place} at */
function goOn(view, at) {
  const stop = stopAfter(view, at);
  if (stop) moveTo(view, stop.at, stop.asking);
  else if (!view.playback.predicting || view.run.phase !== "running") moveTo(view, null);
  return stop;
}

/** Predicting begins where nothing is told yet. @param {View} view */
export function togglePredict(view) {
  leaveShow(view);
  view.playback.predicting = !view.playback.predicting;
  const { predicting, at } = view.playback;
  moveTo(view, predicting && !at && view.drawn ? (view.run.phase === "running" ? lastPlace(view) : START) : at);
}

/** Answers the question, and shows what it was about. @param {View} view @param {string | null} value null: no guess */
export function guess(view, value) {
  const { asking } = view.playback;
  if (!asking) return;
  noteGuess(view, asking, value);
  moveTo(view, asking);
}

/** @param {View} view */
export function goToStart(view) {
  if (!view.drawn) return;
  leaveShow(view);
  moveTo(view, START);
}

/** Looks at the last round's token there, as whoever has read to the end does. @param {View} view */
export function goToEnd(view) {
  if (view.playback.showing) noteSkipped(true);
  leaveShow(view);
  moveTo(view, null);
  const spot = view.drawn && view.run.phase !== "running" && !view.pinned ? spotHere(view, lastPlace(view)) : null;
  if (spot) choose(view, spot);
}

/** All of the run at once, for who speaks about it. @param {View} view */
export function showAll(view) {
  leaveShow(view);
  cancelAnimationFrame(view.playback.frame);
  Object.assign(view.playback, { at: null, asking: null, frame: 0 });
  showPlace(view);
}

/**
 * The bar's slider counts rounds that are over; its right end is the newest, which a live run leaves behind.
 *
 * @param {View} view @param {number} count
 */
export function goToRound(view, count) {
  leaveShow(view);
  view.playback.telling = false;
  if (count >= view.drawn && view.run.phase === "running") moveTo(view, null);
  else moveTo(view, count < 1 ? START : endOf(view.run, Math.min(count, view.drawn) - 1));
}

/** Shows the round large: that of a pinned token, which stays looked at, else the one at the reader's place. @param {View} view */
export function present(view) {
  const { chosen, pinned, drawn } = view;
  if (pinned && chosen && chosen.round < drawn && chosen.round !== (view.playback.at ?? lastPlace(view)).round) {
    leaveShow(view);
    Object.assign(view.playback, { at: endOf(view.run, chosen.round), asking: null });
    showPlace(view);
    choose(view, chosen, { pin: true });
  }
  openPresentation(view);
}

/** Plays, from the start if nothing is left; of a run that is followed live, it holds the place. @param {View} view */
export function togglePlay(view) {
  if (!view.drawn || view.playback.asking) return;
  if (view.playback.playing) view.pause();
  else if (view.playback.at === null && view.run.phase === "running") moveTo(view, lastPlace(view));
  else {
    if (atEnd(view) && view.run.phase !== "running") moveTo(view, START);
    playFrom(view);
  }
  drawTransport(view);
}

/** @param {View} view */
function playFrom(view) {
  view.playback.playing = true;
  const { showing, unit, predicting, at } = view.playback;
  view.playback.telling = showing ? isTold(view, at?.round ?? 0) : unit !== "round" || predicting;
  awaitNext(view);
}

/** Who moves by hand is not shown the rest by itself. @param {View} view */
function leaveShow(view) {
  view.pause();
  view.playback.showing = false;
}

/** @param {View} view */
function awaitNext(view) {
  const at = view.playback.at ?? lastPlace(view);
  const { showing, unit, speed } = view.playback;
  const stay = showing ? staysFor(view, at) : unit === "round" ? DWELL_ROUND : DWELL[at.stage ? stageAt(view.run, at).kind : "draft"];
  view.playback.timer = setTimeout(() => (showing ? showOn(view, at) : playOn(view)), stay / speed);
}

/** Whoever has seen the first rounds, and caught up with a run that goes on, follows it live. @param {View} view @param {Place} at */
function showOn(view, at) {
  const next = shownAfter(view, at);
  if (!next && view.run.phase === "running" && isTold(view, view.drawn)) return awaitNext(view);
  if (next) view.playback.telling = isTold(view, next.round);
  else leaveShow(view);
  moveTo(view, next);
  if (next) awaitNext(view);
}

/** @param {View} view */
function playOn(view) {
  const at = view.playback.at ?? lastPlace(view);
  // At the end of a finished run the last stage stays; behind a live one its reader has caught up.
  const stop = atEnd(view) && view.run.phase !== "running" ? null : goOn(view, at);
  if (stop && !stop.asking) return awaitNext(view);
  view.pause();
  drawTransport(view);
}

/**
 * Brings text, list, picture, figures and bar to the reader's place; touches only what differs from the last one.
 *
 * @param {View} view
 */
function showPlace(view) {
  const { at } = view.playback;
  unfoldHere(view);
  showText(view);
  dressRows(view);
  if (at) {
    follow(view);
    const spot = spotHere(view, at);
    if (spot) choose(view, spot, { pin: view.pinned });
    else letChoiceGo(view);
  } else {
    view.ui.followText.jump();
    view.ui.followRounds.jump();
    lookAgain(view);
    drawPicture(view);
  }
  drawFigures(view);
  /** @type {import("../element.js").SpecvizRun} */ (view.host).tellCharts();
  drawTransport(view);
  drawPredictions(view);
  drawPresentation(view);
}

/** On paper stands the whole run, in the light colours, wherever its reader is. @param {View} view */
export function layOutForPaper(view) {
  const { at } = view.playback;
  const dark = document.querySelector(".dark");
  const show = (/** @type {Place | null} */ place) => {
    view.playback.at = place;
    if (at) showPlace(view);
  };
  dark?.classList.remove("dark");
  show(null);
  fillAll(view);
  window.addEventListener("afterprint", () => {
    dark?.classList.add("dark");
    show(at);
    lookAgain(view);
  }, { once: true });
}

/**
 * A tree is told branch by branch, so it unfolds while its round is told, and folds again behind the reader. Who goes
 * by whole rounds is not told.
 *
 * @param {View} view
 */
function unfoldHere(view) {
  const { at, unfolded } = view.playback;
  const round = at && at.stage > 0 ? view.run.rounds[at.round] : null;
  const index = at && round && isTree(round) ? at.round : null;
  if (unfolded !== null && unfolded !== index) {
    view.playback.unfolded = null;
    setOpen(view, unfolded, false);
  }
  if (index === null || view.opened.has(index) || (at?.stage === endOf(view.run, index).stage && !view.playback.telling)) return;
  view.playback.unfolded = index;
  setOpen(view, index, true);
}

const ABOVE = 96; // px of the list left above the row that is told: the round before it

/**
 * Text and list stay at the reader's place, whatever arrives behind it. Everything is built first, then measured, then
 * scrolled: a layout a frame.
 *
 * @param {View} view
 */
function follow(view) {
  const { at, shown } = view.playback;
  if (!at || !shown) return;
  view.ui.followText.hold();
  view.ui.followRounds.hold();
  const word = (shown.count ? view.spans[shown.round][shown.count - 1] : view.spans[shown.round - 1]?.at(-1)) ?? view.ui.prompt;
  const row = at.stage ? rowHere(view, at.round) : null;
  const down = scrollFor(view.ui.text, word);
  const off = row ? row.getBoundingClientRect().top - view.ui.rounds.getBoundingClientRect().top : 0;
  if (down) view.ui.text.scrollTop += down;
  // The row stands near the top of the list, where the bar above it is, and stays there through its round.
  if (!row) view.ui.rounds.scrollTop = 0;
  else if (off < 0 || off > 2 * ABOVE) view.ui.rounds.scrollTop += off - ABOVE;
  showSpot(view, at);
}

/** In a deep tree: the chip of the stage comes into its box. @param {View} view @param {Place} at */
function showSpot(view, at) {
  const spot = spotHere(view, at);
  const button = spot && chipAt(view, spot.round, spot.index);
  if (button) showInTree(button);
}

/** After each drawing: what arrived goes behind the reader's place. @param {View} view */
export function drawPlayback(view) {
  if (view.playback.at && view.playback.shown === null) showPlace(view); // drawn anew
  if (view.playback.at) {
    view.ui.followText.hold();
    view.ui.followRounds.hold();
  }
  drawTransport(view);
  drawPredictions(view);
  drawPresentation(view);
}

/** What a key does, wherever the focus is on the page. @type {Record<string, (actions: Actions) => void>} */
const KEYS = {
  ArrowLeft: (actions) => actions.step(-1),
  ArrowRight: (actions) => actions.step(1),
  Home: (actions) => actions.goToStart(),
  End: (actions) => actions.goToEnd(),
  " ": (actions) => actions.togglePlay(),
  p: (actions) => actions.openPresentation(),
};

/** What takes all keys, what takes arrows, and what Space presses. */
const [FIELDS, ROWS, PRESSED] = ["input, textarea, select, [contenteditable]:not([contenteditable=false]), [role=textbox], [role=combobox]",
  "[role=tab], [role=radio], [role=option], [role=menuitem], [role=slider]", "button, summary, a[href], [role=button]"];

/**
 * Keys act wherever the focus is, as long as the view is seen, except where they already mean something: in a field, a
 * row of tabs, a button, the list, another dialog.
 *
 * @param {View} view @param {KeyboardEvent} event @param {Actions} actions
 */
export function onPlaybackKey(view, event, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !view.ui.view.checkVisibility()) return;
  const node = /** @type {HTMLElement} */ (event.composedPath()[0]);
  const slides = node.matches("[type=range]") && view.shadow.contains(node);
  if ((node.matches(FIELDS) && !slides) || (node.closest("dialog") ?? view.ui.dialog) !== view.ui.dialog) return;
  const { asking } = view.playback;
  const answer = asking && questionAt(view, asking).options.find(({ key }) => key === event.key.toLowerCase());
  if (answer) {
    event.preventDefault();
    return actions.guess(answer.value);
  }
  if (!Object.hasOwn(KEYS, event.key) || (slides && ![" ", "p"].includes(event.key))) return;
  if (event.key === " " && node.matches(PRESSED)) return;
  if ((node.matches(ROWS) || (view.ui.rounds.contains(node) && node.matches("button"))) && event.key !== "p") return;
  event.preventDefault();
  KEYS[event.key](actions);
}
