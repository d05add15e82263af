// The list of rounds: blocks of rows, filled only near the window.

import { make } from "../../shared/dom.js";
import { follower } from "./follower.js";
import { isLater, place } from "../place.js";
import { roundRow } from "./rows.js";
import { dressed } from "./seals.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Chunk} Chunk */

export const CHUNK = 6; // rounds per block of the list; blocks far from the window hold no rows

export const ROW_GUESS = 82; // px, for rows that were never laid out

/** @param {View} view */
export function roundsCard(view) {
  view.ui.roundsEmpty = make("div", { class: "empty" },
    make("p", { text: view.say("rounds.rounds_empty") }),
    make("p", { text: view.say("rounds.rounds_how") }));
  view.ui.list = make("div", { class: "list", role: "list", "aria-label": view.say("rounds.rounds") });
  view.ui.rounds = make("div", { class: "rounds", part: "rounds", tabindex: "0", role: "region", "aria-label": view.say("rounds.rounds_region") },
    view.ui.roundsEmpty, view.ui.list);
  view.ui.followRounds = follower(view.ui.rounds, view.ui.list, (following) => view.ui.newest.classList.toggle("hidden", following));
  view.ui.newest = make("button", { class: "newest hidden", part: "newest", type: "button", text: view.say("rounds.jump"),
    on: { click: () => view.ui.followRounds.jump() } });
  view.ui.watcher = new IntersectionObserver((entries) => onChunksMoved(view, entries), { root: view.ui.rounds, rootMargin: "400px 0px" });
  view.ui.head = make("h3", { text: view.say("rounds.rounds_title") });
  view.ui.lossy = make("span", { class: "lossy hidden", part: "lossy", role: "note" });
  view.ui.meta = make("span", { class: "quiet meta", part: "meta" });
  return make("div", { class: "card", part: "rounds-card" }, make("div", { class: "head" }, view.ui.head, view.ui.lossy, view.ui.meta),
    make("div", { class: "scroller" }, view.ui.rounds, view.ui.newest));
}

/** @param {View} view @param {number} index */
export function chunkOf(view, index) {
  const number = Math.floor(index / CHUNK);
  while (view.chunks.length <= number) {
    const chunk = { first: view.chunks.length * CHUNK, built: false, box: make("div", { class: "chunk", role: "presentation" }) };
    chunk.box.chunk = chunk;
    view.chunks.push(chunk);
    view.ui.list.append(chunk.box);
    view.ui.watcher.observe(chunk.box);
  }
  return view.chunks[number];
}

/**
 * Builds a block's rows, up to (not including) round `end`.
 *
 * @param {View} view @param {Chunk} chunk @param {number} [end]
 */
export function fill(view, chunk, end = Math.min(chunk.first + CHUNK, view.drawn)) {
  const rows = [];
  for (let index = chunk.first; index < end; index += 1) rows.push(roundRow(view, index));
  chunk.box.replaceChildren(...rows);
  chunk.box.style.height = "";
  chunk.built = true;
}

/** @param {View} view @param {IntersectionObserverEntry[]} entries */
function onChunksMoved(view, entries) {
  for (const entry of entries) {
    const { chunk } = /** @type {Chunk["box"]} */ (entry.target);
    const newest = chunk === view.chunks.at(-1);
    if (entry.isIntersecting && !chunk.built && !isLater(view, chunk)) fill(view, chunk);
    else if (!entry.isIntersecting && chunk.built && !newest && !chunk.box.contains(view.shadow.activeElement)) {
      chunk.box.style.height = `${entry.boundingClientRect.height}px`; // keeps its place, holds no rows
      chunk.box.replaceChildren();
      chunk.built = false;
    }
  }
  ensureTabStop(view);
}

/** Every block. @param {View} view */
export function fillAll(view) {
  for (const chunk of view.chunks) if (!chunk.built) fill(view, chunk);
}

/** All blocks are looked at anew: some were in sight but still to come, some were built for paper. @param {View} view */
export function lookAgain(view) {
  for (const { box } of view.chunks) {
    view.ui.watcher.unobserve(box);
    view.ui.watcher.observe(box);
  }
}

/** @param {View} view @param {number} round @param {Index} index */
export function chipAt(view, round, index) {
  return view.ui.list.querySelector(`.chip[data-round="${round}"][data-index="${index}"]`);
}

/** Shows or folds a round's tree, in place. @param {View} view @param {number} index @param {boolean} open */
export function setOpen(view, index, open) {
  view.everOpened = true;
  if (open) view.opened.add(index);
  else view.opened.delete(index);
  const row = view.ui.list.querySelector(`.round[data-round="${index}"]`);
  if (!row) return; // its block is far from the window, and will be built as it should be
  const active = /** @type {HTMLElement | null} */ (view.shadow.activeElement);
  const focused = row.contains(active) ? active : null;
  const next = roundRow(view, index);
  row.replaceWith(next);
  if (open) bringIn(view, next);
  if (!view.ui.tabStop?.isConnected) setTabStop(view, next.querySelector(".chip.chosen") ?? next.querySelector(".chip"));
  if (!focused) return;
  const same = focused.matches(".chip") && chipAt(view, index, place(focused).index);
  (same || next.querySelector(".toggle")).focus({ preventScroll: true });
}

/** Builds a round's block, the one before it, and so many after it. @param {View} view @param {number} index @param {number} after */
function fillAround(view, index, after) {
  const number = Math.floor(index / CHUNK);
  for (const chunk of view.chunks.slice(Math.max(0, number - 1), number + 1 + after)) if (!chunk.built) fill(view, chunk);
}

/**
 * Scrolls the list no further than it takes to show a row; one too high for it, from its top.
 *
 * @param {View} view @param {HTMLElement} row
 */
function bringIn(view, row) {
  const box = view.ui.rounds.getBoundingClientRect();
  const at = row.getBoundingClientRect();
  if (view.run.phase === "running" || Number(row.dataset.round) < view.run.rounds.length - 1) view.ui.followRounds.hold();
  view.ui.rounds.scrollTop += Math.min(Math.max(0, at.bottom - box.bottom), at.top - box.top);
}

/** @param {View} view @param {number} index */
export function revealRound(view, index) {
  const { box: rows } = chunkOf(view, index);
  // The blocks beside it too: filled only when they come near, they would grow and push the round out of sight.
  fillAround(view, index, 1);
  const row = /** @type {HTMLElement} */ (rows.querySelector(`.round[data-round="${index}"]`));
  const box = view.ui.rounds.getBoundingClientRect();
  const at = row.getBoundingClientRect();
  view.ui.followRounds.hold(); // or a list that is shown again would jump to its end
  if (at.top >= box.top && at.bottom <= box.bottom) return;
  view.ui.rounds.scrollTop += at.top - box.top - (box.height - at.height) / 2;
}

/**
 * The row of a round, built with the block before it: filled only when it comes near, that one would push it away.
 *
 * @param {View} view @param {number} index @returns {HTMLElement | null}
 */
export function rowHere(view, index) {
  const { box } = chunkOf(view, index);
  fillAround(view, index, 0);
  return box.querySelector(".now") ?? box.querySelector(`[data-missing="${index}"]`);
}

/**
 * One chip of the list is reached with Tab, and after it the switch of its row's tree.
 *
 * @param {View} view @param {HTMLElement | null} button
 */
export function setTabStop(view, button) {
  for (const [stop, tabIndex] of [[view.ui.tabStop, -1], [button, 0]]) {
    if (!stop) continue;
    stop.tabIndex = tabIndex;
    const opener = stop.closest(".round")?.querySelector(".toggle");
    if (opener) opener.tabIndex = tabIndex;
  }
  view.ui.tabStop = button;
}

/** Tab enters the list at one chip: the one last focused, else the newest. @param {View} view */
export function ensureTabStop(view) {
  if (view.ui.tabStop?.isConnected && (view.ui.tabStop === view.shadow.activeElement || view.ui.tabStop.matches(".chosen"))) return;
  const rows = view.ui.list.querySelectorAll(".round");
  const newest = rows[rows.length - 1]?.querySelector(".chip");
  if (newest) setTabStop(view, newest);
}

/** @param {View} view */
export function dressRows(view) {
  for (const chunk of view.chunks) {
    if (!chunk.built) continue;
    for (const row of chunk.box.children) dressed(view, /** @type {HTMLElement} */ (row));
  }
}
