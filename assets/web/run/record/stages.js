// What happens in a round, stage by stage, and what is known of it at each.

import { acceptedIndexes, firstRejected, isBlock, isLossy } from "./records.js";
import { depthOf } from "./trees.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").Known} Known */
/** @typedef {import("../types.js").Stage} Stage */
/** @typedef {import("../types.js").Place} Place */

/**
 * What happens in a round, in order: { kind, index }; index is the token a stage is about.
 *
 * @param {Run} run @param {Round | null} round @returns {Stage[]}
 */
export function stagesOf(run, round) {
  if (!round) return [{ kind: "missing", index: "next" }];
  const drafts = round.drafted.map((_, index) => /** @type {Stage} */ ({ kind: "draft", index }));
  return [...drafts, { kind: "pass", index: round.drafted.length ? 0 : "next" }, ...decisionsOf(run, round), { kind: "next", index: "next" }];
}

/** The stage that a place in a round ends with. @param {Run} run @param {Place} place */
export const stageAt = (run, { round, stage }) => stagesOf(run, run.rounds[round])[stage - 1];

/**
 * Tokens are judged depth by depth, siblings in the order tried. Block verification weighs the whole chain, and typical
 * acceptance holds all tokens against their thresholds and then takes the longest path: each is one decision.
 *
 * @param {Run} run @param {Round} round @returns {Stage[]}
 */
function decisionsOf(run, round) {
  const judged = round.drafted.flatMap((token, index) => (token.outcome === "discarded" ? [] : [index]));
  if (!judged.length) return [];
  if (!isBlock(run) && !isLossy(round)) {
    judged.sort((a, b) => depthOf(round, a) - depthOf(round, b) || a - b);
    return judged.map((index) => ({ kind: "decide", index }));
  }
  const refused = firstRejected(round);
  return [{ kind: "decide", index: refused < 0 ? judged[judged.length - 1] : refused, whole: true }];
}

/**
 * What is known of a round at a place in it: how many tokens are drafted, whose verdicts are out, and the rest.
 *
 * @param {Run} run @param {number} index @param {number} stage @returns {Known}
 */
export function knownAt(run, index, stage) {
  const round = run.rounds[index];
  const stages = stagesOf(run, round);
  const done = stages.slice(0, stage);
  const decisions = stages.filter(({ kind }) => kind === "decide");
  const decided = done.filter(({ kind }) => kind === "decide");
  const complete = stage === stages.length;
  const all = decided.length === decisions.length && done.some(({ kind }) => kind === "pass");
  return {
    stage: done.at(-1) ?? null, // the one a reader looks at; null before the first
    number: done.filter(({ kind }) => kind === done.at(-1)?.kind).length,
    of: stages.filter(({ kind }) => kind === done.at(-1)?.kind).length,
    drafted: done.filter(({ kind }) => kind === "draft").length,
    passed: done.some(({ kind }) => kind === "pass"),
    judged: all ? null : new Set(decided.map(({ index: i }) => i)), // null: every verdict is out
    complete,
  };
}

/**
 * "unborn", "drafted", "passed" (p is known, the verdict is not) or null, where nothing is left to come.
 *
 * @param {Known} known @param {Index} index
 */
export function pendingOf(known, index) {
  if (index === "next") return known.complete ? null : "unborn";
  if (index >= known.drafted) return "unborn";
  if (!known.judged || known.judged.has(index)) return null;
  return known.passed ? "passed" : "drafted";
}

/**
 * How many of a round's emitted tokens stand in the text.
 *
 * @param {Run} run @param {number} index @param {Known} known
 */
export function committedIn(run, index, known) {
  const round = run.rounds[index];
  if (!round) return known.complete ? 1 : 0; // the mark that stands for it
  if (known.complete) return round.emitted.length;
  const accepted = acceptedIndexes(round).filter((i) => known.passed && (!known.judged || known.judged.has(i)));
  return Math.min(accepted.length, round.emitted.length);
}
