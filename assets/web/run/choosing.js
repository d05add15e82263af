// Which token is looked at: chosen by mouse, touch or focus, or by the view itself.

import { markChosen } from "./list/chips.js";
import { chipAt, revealRound, setOpen, setTabStop } from "./list/list.js";
import { scrollPage } from "../shared/dom.js";
import { place } from "./place.js";
import { chipOfEmitted, emittedPosition, firstRejected } from "./record/records.js";
import { drawPicture } from "./picture/picture.js";
import { drawTransport } from "./playback/transport.js";
import { showWord } from "./list/text.js";
import { showInTree } from "./list/tree_box.js";
import { isTree } from "./record/trees.js";

/** @typedef {import("./data.js").Run} Run */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Spot} Spot */

/** The token that a word of the text belongs to. @param {Run} run @param {HTMLElement} span @returns {Spot} */
function placeOfWord(run, span) {
  const round = Number(span.dataset.round);
  return { round, index: chipOfEmitted(run.at(round), Number(span.dataset.token)) };
}

/** @param {View} view @param {Spot} spot @param {{ pin?: boolean, reveal?: boolean }} [how] */
export function choose(view, spot, { pin = false, reveal = false } = {}) {
  const same = view.chosen && view.chosen.round === spot.round && view.chosen.index === spot.index;
  view.pinned = pin;
  view.everChosen = true;
  if (!same) {
    clearMarks(view);
    view.chosen = spot;
  }
  if (reveal) revealRound(view, spot.round);
  const button = chipAt(view, spot.round, spot.index);
  markChosen(button);
  if (button && reveal) showInTree(button);
  const position = emittedPosition(view.run.at(spot.round), spot.index);
  if (position >= 0) view.spans[spot.round]?.[position]?.classList.add("chosen");
  view.ui.picture.toggleAttribute("data-open", pin);
  drawPicture(view);
}

/** By a reader's hand: what plays stops, and the picture stays in the window, beside the chip it speaks about. @param {View} view @param {Spot} spot @param {boolean} [reveal] */
export function pin(view, spot, reveal = false) {
  view.pause();
  if (!view.presentation.open) view.picture.piece ??= "draft";
  choose(view, spot, { pin: true, reveal });
  showWord(view, spot);
  drawTransport(view);
  const button = chipAt(view, spot.round, spot.index);
  const hidden = button ? view.ui.picture.getBoundingClientRect().bottom + 12 - button.getBoundingClientRect().top : 0;
  if (button && !reveal && hidden > 0) scrollPage(-hidden);
}

/** @param {View} view */
function clearMarks(view) {
  for (const node of view.shadow.querySelectorAll(".chosen")) {
    node.classList.remove("chosen");
    node.removeAttribute("aria-pressed");
  }
}

/**
 * Unpins: back to the whole round. Focus goes back to the chip it came from.
 *
 * @param {View} view @param {boolean} refocus
 */
export function letGo(view, refocus) {
  const { chosen } = view;
  view.pinned = false;
  view.picture.piece = null;
  view.ui.picture.removeAttribute("data-open");
  if (refocus && chosen) chipAt(view, chosen.round, chosen.index)?.focus({ preventScroll: true });
  drawPicture(view);
}

/** @param {View} view */
export function letChoiceGo(view) {
  clearMarks(view);
  view.chosen = null;
  drawPicture(view);
}

/**
 * When a run ends and nobody has pointed at anything, the newest refusal is the most telling token to show; and if
 * nobody has unfolded a tree, that round's.
 *
 * @param {View} view
 */
export function showSomething(view) {
  if (view.run.phase !== "finished" || view.playback.at) return;
  const spot = view.run.start.recorded ? firstRefusal(view.run) : newestRefusal(view.run);
  if (!spot || !view.run.rounds.length) return;
  if (!view.everOpened && isTree(view.run.at(spot.round))) setOpen(view, spot.round, true);
  if (!view.everChosen) choose(view, spot);
}

/** A recorded run is read from its beginning. @param {Run} run @returns {Spot} */
function firstRefusal(run) {
  const round = run.rounds.findIndex((one) => one && firstRejected(one) >= 0);
  return round < 0 ? { round: 0, index: "next" } : { round, index: firstRejected(run.at(round)) };
}

/** @param {Run} run @returns {Spot | null} */
function newestRefusal(run) {
  for (let r = run.rounds.length - 1; r >= Math.max(0, run.rounds.length - 60); r -= 1) {
    const i = run.rounds[r] ? firstRejected(run.at(r)) : -1;
    if (i >= 0) return { round: r, index: i };
  }
  return run.rounds.at(-1) ? { round: run.rounds.length - 1, index: "next" } : null;
}

/** @param {View} view @param {any} event */
export function onChipClick(view, event) {
  const opener = event.target.closest(".toggle");
  if (opener) return setOpen(view, Number(opener.dataset.round), opener.getAttribute("aria-expanded") === "false");
  const button = event.target.closest(".chip");
  if (!button) return;
  const spot = place(button);
  const again = view.pinned && view.chosen?.round === spot.round && view.chosen.index === spot.index;
  if (again) letGo(view, false);
  else pin(view, spot);
}

/** @param {View} view @param {any} event */
export function onTextClick(view, event) {
  const span = event.target.closest(".t");
  if (span) pin(view, placeOfWord(view.run, span), true);
}

/**
 * Hovering previews, and the last preview stays: a reader moves the mouse away to read it.
 * A list that scrolls under a resting mouse is not hovering.
 *
 * @param {View} view @param {any} event
 */
export function onPointer(view, event) {
  if (event.pointerType !== "mouse" || view.pinned || view.playback.playing) return;
  if (!event.movementX && !event.movementY) return;
  const target = event.target.closest(".chip, .t");
  if (!target) return;
  const spot = target.matches(".chip") ? place(target) : placeOfWord(view.run, target);
  if (view.chosen?.round !== spot.round || view.chosen.index !== spot.index) choose(view, spot);
}

/** @param {View} view @param {any} event */
export function onFocus(view, event) {
  const button = event.target.closest(".chip");
  if (!button) return;
  setTabStop(view, button);
  if (!button.matches(":focus-visible")) return;
  // What is pinned goes along: two tokens looked at would be one too many.
  choose(view, place(button), { pin: view.pinned });
  if (view.pinned) showWord(view, place(button));
}
