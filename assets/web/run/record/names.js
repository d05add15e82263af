// What a token, or what put it forward, is called.

import { nextKind } from "./records.js";
import { depthOf, isTree, siblings } from "./trees.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */

/**
 * What put a token forward, in words; the engine's own where it has no others.
 *
 * @param {Run} run @param {string} source
 */
export function sourceName(run, source) {
  const [, part, number] = /^(head|layer|mask|match|module|slot|step) (\d+)$/.exec(source) ?? [];
  if (part) return run.say(`rounds.source_${part}`, { number });
  return /^(pool|row|window)$/.test(source) ? run.say(`rounds.source_${source}`) : source;
}

/** @param {Run} run @param {Round} round @param {Index} index */
export function placeInTree(run, round, index) {
  const { kin, order } = siblings(round, index);
  return run.say(kin.length > 1 ? "rounds.place_of_many" : "rounds.place", { depth: depthOf(round, index), order, count: kin.length });
}

/** @param {Run} run @param {Round} round @param {Index} index */
export function tokenName(run, round, index) {
  if (index === "next") return run.say(`rounds.name_${nextKind(round)}`);
  return isTree(round) ? placeInTree(run, round, index) : run.say("rounds.name_draft", { number: index + 1 });
}
