// The list by keyboard: arrows lead from chip to chip, along a line, between rounds, and within a tree.

import { letGo } from "./choosing.js";
import { chipAt, chunkOf, fill } from "./list/list.js";
import { place } from "./place.js";
import { families, parentOf, pathOf } from "./record/trees.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Index} Index */
/** @typedef {import("./types.js").Round} Round */

/** @param {View} view @param {any} event */
export function onKey(view, event) {
  if (event.key === "Escape") return letGo(view, true);
  const button = event.target.closest(".chip");
  if (!button) return;
  const { round, index } = place(button);
  const within = button.closest(".tree") ? stepInTree(event.key, view.run.at(round), index) : undefined;
  const at = Math.max(0, pathOf(view.run.at(round)).indexOf(index));
  /** @type {Record<string, [number, number]>} where each key leads: round, and place in its line */
  const moves = {
    ArrowRight: [round, at + 1], ArrowLeft: [round, at - 1], ArrowDown: [round + 1, at], ArrowUp: [round - 1, at],
    Home: [0, 0], End: [view.run.rounds.length - 1, 0],
  };
  if (!Object.hasOwn(moves, event.key)) return; // Enter and Space click the button
  event.preventDefault();
  if (within !== undefined) chipAt(view, round, within).focus();
  else focusChip(view, ...moves[event.key]);
}

/**
 * Where a key leads inside an open tree: along the branch, or between siblings; undefined where it leads out of it.
 *
 * @param {string} key @param {Round} round @param {Index} index @returns {Index | undefined}
 */
function stepInTree(key, round, index) {
  const kin = families(round);
  const parent = parentOf(round, index);
  const [beside, ahead] = [kin.get(parent) ?? [], kin.get(index) ?? []];
  switch (key) {
    case "ArrowLeft": return parent < 0 ? undefined : parent;
    case "ArrowUp": return beside[beside.indexOf(index) - 1];
    case "ArrowDown": return beside[beside.indexOf(index) + 1];
    case "ArrowRight":
      if (!ahead.length) return index === "next" ? undefined : index; // the end of a branch that was cut
      return ahead.find((node) => node === "next" || round.drafted[node].outcome === "accepted") ?? ahead[0];
    default: return undefined;
  }
}

/**
 * Focuses chip `at` of a round's line; past either end it steps into the neighbouring round.
 *
 * @param {View} view @param {number} round @param {number} at
 */
function focusChip(view, round, at) {
  const lane = (/** @type {number} */ index) => (view.run.rounds[index] ? pathOf(view.run.at(index)) : null);
  const sideways = at < 0 ? -1 : at >= (lane(round)?.length ?? Infinity) ? 1 : 0;
  const vertical = view.shadow.activeElement?.getAttribute("data-round") !== String(round);
  if (sideways && !vertical) {
    round += sideways;
    at = sideways < 0 ? Infinity : 0;
  }
  const path = lane(round);
  if (!path) return;
  const chunk = chunkOf(view, round);
  if (!chunk.built) fill(view, chunk);
  if (round < view.run.rounds.length - 1) view.ui.followRounds.hold();
  chipAt(view, round, path[Math.min(Math.max(at, 0), path.length - 1)])?.focus();
}
