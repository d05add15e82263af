// What if? A round with another γ, at another temperature, or with coins set by hand: what follows from its record, and
// what does not, as "open".

import { distributions } from "./distribution.js";
import { isDrawn } from "../place.js";
import { acceptedIndexes, blockWeights, firstRejected, isBlock, isLossy, tokenText } from "../record/records.js";
import { depthOf, isTree } from "../record/trees.js";
import { tempered } from "./tempered.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */
/** @typedef {import("./tempered.js").Range} Range */

/**
 * What is supposed of a round; null: as it was.
 *
 * @typedef {{ round: number, gamma: number | null, temperature: number | null, coins: { [index: string]: number },
 *   exact?: Round | null }} Supposed exact: the round as the models have worked it out, where they were there
 */

/** @type {Supposed} */
export const AS_IT_WAS = Object.freeze({ round: -1, gamma: null, temperature: null, coins: {} });

/** What is supposed of a round: of one that is over at the reader's place. @param {View} view @param {number} round */
export function supposedOf(view, round) {
  return view.supposed.round === round && isDrawn(view, { round, index: "next" }) ? view.supposed : AS_IT_WAS;
}

/** @param {Supposed} what */
export const isAsItWas = ({ gamma, temperature, coins }) => gamma === null && temperature === null && !Object.keys(coins).length;

/** A round as it is supposed. @param {View} view @param {number} number */
export function roundShown(view, number) {
  const what = supposedOf(view, number);
  const round = view.run.at(number);
  if (isAsItWas(what)) return round;
  const { exact } = what;
  if (!exact) return suppose(view.run, round, what);
  const drafted = round.drafted.map((token, index) => exact.drafted[index] ?? { ...token, outcome: /** @type {const} */ ("undrafted") });
  return { ...exact, drafted, top: round.top.map((row, index) => exact.top[index] ?? row) };
}

/**
 * The temperature that the recorded probabilities are of; null where those at another one do not follow from them: what
 * top-p and min-p cut off depends on it. Greedy rounds hold the models' own, at temperature 1.
 *
 * @param {Run} run
 */
export function recordedTemperature({ start }) {
  const { sampling } = start;
  if (!sampling || start.engine || sampling.top_p < 1 || sampling.min_p > 0) return null;
  return start.greedy ? 1 : sampling.temperature;
}

/** What logits are multiplied by at the temperature supposed. @param {Run} run @param {Supposed} what */
export const powerOf = (run, { temperature, exact }) => (temperature === null || exact ? 1 : (recordedTemperature(run) ?? 1) / temperature);

/** @param {Run} run @param {Round} round @param {Supposed} what @returns {Round} */
export function suppose(run, round, what) {
  const tokens = round.drafted.map((token, index) => ({ ...token, u: what.coins[index] ?? token.u, ...at(run, round, index, what) }));
  const outcomes = isLossy(round) ? round.drafted.map(({ outcome }) => outcome)
    : isBlock(run) && !isTree(round) ? blockOutcomes(tokens, what) : isTree(round) ? treeOutcomes(round, tokens) : chainOutcomes(tokens);
  const drafted = tokens.map((token, index) => ({ ...token, outcome: depthOf(round, index) > (what.gamma ?? Infinity) ? "undrafted" : outcomes[index] }));
  const supposed = /** @type {Round} */ ({ ...round, drafted });
  const next = nextOf(run, round, supposed, what);
  const emitted = [...acceptedIndexes(supposed).map((index) => drafted[index].id), next.id];
  return { ...supposed, next, emitted };
}

/**
 * A token's `bound`, what its coin has to stay below, null where that cannot be told; at another temperature its shares too.
 *
 * @param {Run} run @param {Round} round @param {number} index @param {Supposed} what @returns {Pick<DraftedToken, "bound" | "shares">}
 */
function at(run, round, index, what) {
  const token = round.drafted[index];
  const same = (/** @type {number | null} */ x) => ({ bound: /** @type {Range | null} */ (x === null ? null : [x, x]) });
  if (what.temperature === null) {
    // The last position of a block has its weight for h.
    if (isBlock(run) && !isTree(round) && index + 1 === what.gamma) return same(blockWeights(round)[index]);
    const known = token.accept_prob !== null || isTree(round) || isBlock(run) || !token.q;
    return same(known ? token.accept_prob : Math.min(1, (token.p ?? 0) / (token.q ?? 1)));
  }
  const { p, q } = distributions(run, round, index);
  const [above, below] = [p, q].map((map) => (token.id === null ? undefined : tempered(map, powerOf(run, what)).get(token.id)));
  const drawn = below ?? (token.q === 1 ? /** @type {Range} */ ([1, 1]) : undefined);
  const shares = { p: above, q: drawn };
  if (isBlock(run) || token.p_left != null || !above || !drawn) return { bound: null, shares };
  return { bound: [Math.min(1, above[0] / drawn[1]), Math.min(1, above[1] / drawn[0])], shares };
}

/** @param {DraftedToken} token */
function verdict({ u, bound }) {
  if (!bound) return "open";
  if (bound[0] >= 1) return "accepted";
  if (bound[1] <= 0) return "rejected";
  if (u === null) return "open";
  return u < bound[0] ? "accepted" : u >= bound[1] ? "rejected" : "open";
}

/** One after the other: nothing is judged after a refusal, and nobody knows after what is open. @param {DraftedToken[]} tokens */
function chainOutcomes(tokens) {
  let last = "accepted";
  return tokens.map((token) => {
    if (last === "accepted") return (last = verdict(token));
    return last === "open" ? "open" : "discarded";
  });
}

/** The last coin below its h decides. @param {DraftedToken[]} tokens @param {Supposed} what */
function blockOutcomes(tokens, { gamma }) {
  const judged = tokens.slice(0, gamma ?? tokens.length).map(verdict);
  const kept = judged.lastIndexOf("accepted") + 1;
  return tokens.map((_, index) => (judged.includes("open") ? "open" : index < kept ? "accepted" : index === kept ? "rejected" : "discarded"));
}

/** As recorded up to the first verdict that differs: the coins of what would be tried then were not flipped. @param {Round} round @param {DraftedToken[]} tokens */
function treeOutcomes(round, tokens) {
  /** @type {string[]} */
  const outcomes = round.drafted.map(({ outcome }) => outcome);
  const turns = [...tokens.keys()].filter((index) => outcomes[index] !== "discarded").sort((a, b) => depthOf(round, a) - depthOf(round, b) || a - b);
  const other = turns.findIndex((index) => verdict(tokens[index]) !== outcomes[index]);
  if (other < 0) return outcomes;
  const decided = turns.slice(0, other);
  const cut = (/** @type {number} */ index) => index >= 0 && (decided.includes(index) && outcomes[index] === "rejected");
  return tokens.map((token, index) => decided.includes(index) ? outcomes[index] : index === turns[other] ? verdict(token) : cut(token.parent) ? "discarded" : "open");
}

/**
 * The target's own token. From another row, or another distribution, its draw is not recorded.
 *
 * @param {Run} run @param {Round} round @param {Round} supposed @param {Supposed} what
 */
function nextOf(run, round, supposed, what) {
  const outcomes = supposed.drafted.map(({ outcome }) => /** @type {string} */ (outcome));
  const kind = outcomes.includes("open") ? "open" : firstRejected(supposed) >= 0 && !isLossy(round) ? "recovered" : "bonus";
  const same = what.temperature === null && String(acceptedIndexes(supposed)) === String(acceptedIndexes(round)) && kind === round.next.kind;
  if (!same) return /** @type {any} */ ({ ...round.next, id: -1, text: "", kind, u: null, prob: null, below: null, line: [], unknown: true });
  const u = what.coins.next;
  if (u === undefined) return round.next;
  const piece = (round.next.line ?? []).find(([, start, end]) => u >= start && u < end);
  if (!piece) return { ...round.next, id: -1, text: "", u, below: null, unknown: true };
  const [id, start, end] = piece;
  return { ...round.next, u, id, text: tokenText(run, id), below: start, prob: end - start };
}
