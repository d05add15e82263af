// What a round's record says about its tokens.

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */
/** @typedef {import("../types.js").FlippedToken} FlippedToken */
/** @typedef {import("../types.js").NextToken} NextToken */

/** @param {Round} round */
export const nextKind = (round) => (round.drafted.length ? round.next.kind : "plain");

/** @param {Round} round */
export const acceptedIndexes = (round) => round.drafted.flatMap((token, i) => (token.outcome === "accepted" ? [i] : []));

/** The first draft token that was rejected, −1 where none was. @param {Round} round */
export const firstRejected = (round) => round.drafted.findIndex((token) => token.outcome === "rejected");

/** @param {Round} round @param {Index} index */
export const tokenAt = (round, index) => (index === "next" ? round.next : round.drafted[index]);

/** Whether a token was judged without a coin, at temperature 0. @param {Run} run @param {DraftedToken} token */
export const isGreedy = (run, token) => Boolean(run.start.greedy) && token.u === null;

/**
 * Whether another engine's record says how a token was judged. What is left of p for a sibling tried after others is up to
 * that engine's rule.
 *
 * @param {Run} run @param {DraftedToken} token
 */
export const isTold = (run, token) => !run.start.engine || isGreedy(run, token) || (token.p !== null && token.q !== null && hasCoin(token));

/** Whether the target's own token was its choice, at temperature 0. @param {Run} run @param {NextToken} next */
export const isChosen = (run, next) => next.u === null && (!run.start.engine || Boolean(run.start.greedy));

/** Whether another engine did not say which token it drafted. @param {DraftedToken} token */
export const isUnknown = ({ id, outcome }) => id === null && outcome !== "accepted";

/** Of another engine nobody knows where its tokens came from. @param {Run} run @param {DraftedToken} token */
export const isCopy = (run, token) => !run.start.engine && token.q_raw === null && token.q === 1 && /^match |^$/.test(token.source ?? "");

/**
 * Under a lossy rule every round carries its distance from the target's distribution; greedy drafts are matched by any rule.
 *
 * @param {Round} round
 */
export const isLossy = (round) => round.distance !== undefined;

/** Whether drafts are judged as a whole: chains, or the path picked among several. @param {Run} run */
export const isBlock = (run) => run.start.draws_like === "block" && !run.start.greedy;

/** @param {DraftedToken} token */
export const isJudged = (token) => token.accept_prob !== null;

/** Older traces do not say where on the line a token lies, and a greedy choice has no place there. @param {NextToken} next */
export const isPlaced = (next) => typeof next.below === "number" && next.u !== null;

/**
 * The draft token, if a coin decided on it; null for any other.
 *
 * @param {Round} round @param {Index} index @returns {FlippedToken | null}
 */
export function flippedAt(round, index) {
  const token = index === "next" ? null : round.drafted[index];
  const known = token && (token.bound === undefined ? token.accept_prob !== null : token.bound !== null);
  return known && token.u !== null && !isLossy(round) ? /** @type {FlippedToken} */ (token) : null;
}

/** @param {DraftedToken} token @returns {token is FlippedToken} */
export const hasCoin = (token) => token.u !== null && token.accept_prob !== null;

/**
 * Whether this is where a draft ended: a refused token, or what the target drew in its place.
 *
 * @param {Run} run @param {Round} round @param {Index} index
 */
export function isRefusal(run, round, index) {
  if (run.start.greedy || isLossy(round)) return false;
  return index === "next" ? nextKind(round) === "recovered" : round.drafted[index].outcome === "rejected";
}

/**
 * The chip an emitted token belongs to: accepted draft tokens in path order, then the target's own.
 *
 * @param {Round} round @param {number} k
 */
export function chipOfEmitted(round, k) {
  const accepted = acceptedIndexes(round);
  return k < accepted.length ? accepted[k] : "next";
}

/**
 * Position among the emitted tokens, or -1: not emitted (refused, discarded, or cut off by the stop).
 *
 * @param {Round} round @param {Index} index
 */
export function emittedPosition(round, index) {
  const accepted = acceptedIndexes(round);
  const position = index === "next" ? accepted.length : accepted.indexOf(index);
  return position < round.emitted.length ? position : -1;
}

/** @param {Round} round @param {Index} index */
export function wasDropped(round, index) {
  const kept = index === "next" || round.drafted[index].outcome === "accepted";
  return kept && emittedPosition(round, index) < 0;
}

/** Which row of the target pass judged or drew this token. @param {Round} round @param {Index} index */
export function rowOf(round, index) {
  const accepted = acceptedIndexes(round);
  const parent = index === "next" ? (accepted.at(-1) ?? -1) : round.drafted[index].parent;
  return round.top[parent + 1] ?? { p: [] };
}

/** @param {Run} run @param {number} id */
export function tokenText(run, id) {
  return run.vocabulary.get(id) ?? `#${id}`;
}

/**
 * p_i of block verification (Sun et al. 2024) after each draft token: min(p_{i−1}·p/q, 1), from p_0 = 1.
 *
 * @param {Round} round
 */
export function blockWeights(round) {
  /** @type {number[]} */
  const weights = [];
  for (const token of round.drafted) weights.push(Math.min(1, ((weights[token.parent] ?? 1) * (token.p ?? 0)) / (token.q ?? 1)));
  return weights;
}
