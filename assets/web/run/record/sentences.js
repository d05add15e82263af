// What happened to a token, in sentences whose numbers can be worked out from the ones beside them.

import { compared, decimalsOf, divided, plainNumber, quotient, written } from "../../shared/numbers.js";
import { quoted } from "../../shared/tokens.js";
import { sourceName } from "./names.js";
import {
  acceptedIndexes, hasCoin, isBlock, isChosen, isCopy, isGreedy, isJudged, isLossy, isPlaced, isTold, nextKind, wasDropped,
} from "./records.js";
import { isTree, parentOf, refusedHere, siblings } from "./trees.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */
/** @typedef {import("../types.js").Row} Row */

/**
 * What happened to a token; the numbers in it can be worked out from the ones beside them.
 *
 * @param {Run} run @param {Round} round @param {Index} index @param {boolean} drawn whether the next token is known
 */
export function sentence(run, round, index, drawn) {
  const said = index === "next" ? sayNext(run, round) : sayDrafted(run, round, index, drawn);
  if (wasDropped(round, index)) said.push(run.say("rounds.dropped"));
  return unbroken(said.join(" "));
}

/** An equation stays on one line, and a number: a true minus is no place to break it. @param {string} text */
export const unbroken = (text) => text.replace(/ ([=</]) /g, "\u00a0$1\u00a0").replace(/(\d)e-(\d)/g, "$1e\u2212$2");

/** @param {Run} run @param {Round} round @param {number} index @param {boolean} drawn */
function sayDrafted(run, round, index, drawn) {
  const token = round.drafted[index];
  const block = isBlock(run) && isJudged(token);
  if (!isTold(run, token)) return [sayElsewhere(run, token)];
  if (token.outcome === "discarded" && !block) return [...sayProposed(run, token), sayDiscarded(run, token), sayCut(run, round, index)];
  if (isGreedy(run, token)) return [...sayProposed(run, token), ...sayGreedy(run, round, index)];
  const opening = [...sayTurn(run, round, index), ...sayProposed(run, token), sayDraw(run, round, index)];
  if (isLossy(round)) return [...opening, run.say("rounds.typical_rule"), sayTypical(run, token)];
  if (block) return [...opening, run.say("rounds.block_given", { p: plainNumber(token.p) }), run.say("rounds.block_rule"), sayBlock(run, round, index)];
  return [...opening, sayCoin(run, round, index), ...sayAfter(run, round, index, drawn)];
}

/** As much as another engine recorded of a token. @param {Run} run @param {DraftedToken} token */
function sayElsewhere(run, token) {
  const recorded = [token.p, token.q, token.u].filter((value) => value !== null).length;
  const how = recorded === 0 ? "_untold" : recorded === 3 && token.outcome !== "discarded" ? "_later" : "";
  return run.say(`rounds.elsewhere_${token.outcome}${how}`, { p: plainNumber(token.p), q: plainNumber(token.q), u: plainNumber(token.u) });
}

/** Which layer, head, mask or match put a token forward. @param {Run} run @param {DraftedToken} token */
function sayProposed(run, { source }) {
  if (source == null) return [];
  const match = /^match (\d+)$/.exec(source);
  if (match) return [run.say("rounds.found", { n: Number(match[1]) })];
  const place = /^(mask|slot) (\d+)$/.exec(source);
  if (place) return [run.say(`rounds.proposed_${place[1]}`, { number: place[2] })];
  if (/^(pool|row|window)$/.test(source)) return [run.say(`rounds.proposed_${source}`)];
  return [run.say("rounds.proposed", { source: sourceName(run, source) })];
}

/** A sibling's turn: after whom it was tried. @param {Run} run @param {Round} round @param {number} index */
function sayTurn(run, round, index) {
  const { kin, order } = siblings(round, index);
  if (kin.length < 2 || isLossy(round) || isBlock(run)) return [];
  const turn = ["first", "second"][order - 1] ?? "later";
  const before = quoted(run.say, round.drafted[kin[0]].text);
  return [run.say(`rounds.turn_${turn}`, { order, count: kin.length, before, refused: order - 1 })];
}

/** How the draft came to propose a token, with its q. @param {Run} run @param {Round} round @param {number} index */
function sayDraw(run, round, index) {
  const token = round.drafted[index];
  const values = { token: quoted(run.say, token.text), q: judgedBy(run, token).q };
  if (isBlock(run) && isTree(round)) return run.say("rounds.drew_picked", { ...values, q: plainNumber(token.q) });
  if (isCopy(run, token)) return run.say("rounds.drew_copy", values);
  if (token.q === 1) return run.say(isTree(round) ? "rounds.drew_choice" : "rounds.drew_certain", values);
  return run.say(siblings(round, index).order > 1 ? "rounds.drew_again" : "rounds.drew", values);
}

/**
 * The numbers of a coin as they are written: `share`, what p or p′ was, and q with the digits it takes to divide them,
 * u, and `bound`, what it had to stay below.
 *
 * @param {Run} run @param {DraftedToken} token
 */
function judgedBy(run, token) {
  const tried = token.p_left ?? token.p;
  const [u, threshold] = hasCoin(token) ? compared(token.u, token.accept_prob) : ["", ""];
  if (!hasCoin(token) || isBlock(run) || token.accept_prob >= 1 || token.accept_prob <= 0 || token.q === 1) {
    return { share: plainNumber(tried), q: plainNumber(token.q), u, bound: threshold };
  }
  const [share, q] = divided(tried, token.q, threshold);
  return { share, q, u, bound: `${quotient(tried, token.q, threshold)} = ${threshold}` };
}

/**
 * p, what the coin had to stay below, the coin and its verdict.
 *
 * @param {Run} run @param {Round} round @param {number} index
 */
function sayCoin(run, round, index) {
  const token = round.drafted[index];
  const { share, u, bound } = judgedBy(run, token);
  const tried = token.p_left !== undefined;
  const values = { p: tried ? plainNumber(token.p) : share, left: share, u, bound };
  if (token.p === 0) return run.say("rounds.coin_never", values);
  if (token.accept_prob === 0) return run.say("rounds.coin_never_left", values);
  const suffix = tried ? "_left" : "";
  if ((token.accept_prob ?? 0) >= 1) return run.say(`rounds.coin_always${suffix}`, values);
  const more = token.outcome === "rejected" && round.drafted.some((other) => other.parent === index);
  return run.say(`rounds.coin_${token.outcome}${more ? "_all" : ""}${suffix}`, values);
}

/** @param {Run} run @param {Round} round @param {number} index @param {boolean} drawn */
function sayAfter(run, round, index, drawn) {
  if (round.drafted[index].outcome !== "rejected") return [];
  const { kin, order } = siblings(round, index);
  const after = isTree(round) && round.drafted[kin[order]];
  if (after) return [run.say("rounds.then_sibling", { after: quoted(run.say, after.text) })];
  return drawn ? [run.say(isTree(round) ? "rounds.then_left" : "rounds.then_residual", { next: quoted(run.say, round.next.text) })] : [];
}

/**
 * Block verification (Sun et al. 2024): every coin is flipped, and the last one below its h decides.
 *
 * @param {Run} run @param {Round} round @param {number} index
 */
function sayBlock(run, round, index) {
  const token = round.drafted[index];
  const [coin, threshold] = [token.u ?? 0, token.accept_prob ?? 0];
  const last = acceptedIndexes(round).at(-1) ?? -1;
  const [u, h] = compared(coin, threshold);
  const values = { u, h, later: last < 0 ? "" : quoted(run.say, round.drafted[last].text) };
  if (token.outcome !== "accepted") return run.say(`rounds.block_${token.outcome}`, values);
  if (index < last) return run.say(coin < threshold ? "rounds.block_below" : "rounds.block_above", values);
  return run.say(index === round.drafted.length - 1 ? "rounds.block_end" : "rounds.block_last", values);
}

/** Typical acceptance (Medusa): no coin, a threshold. @param {Run} run @param {DraftedToken} token */
function sayTypical(run, token) {
  const verdict = token.outcome === "accepted" ? "accepted" : (token.accept_prob ?? 0) >= 1 ? "elsewhere" : "rejected";
  return run.say(`rounds.typical_${verdict}`, { p: plainNumber(token.p) });
}

/** @param {Run} run @param {Round} round */
export function sayDistance(run, round) {
  return run.say("rounds.distance", { distance: plainNumber(round.distance ?? 0) });
}

/** What an earlier rejection cost where the target has a running state. @param {Run} run @param {Round} round */
export function sayReadAgain(run, round) {
  return run.say("rounds.read_again_why", { n: round.read_again ?? 0 });
}

/** How much of p a draft vocabulary without all tokens reaches. @param {Run} run @param {number} reach */
export function sayReach(run, reach) {
  return run.say("rounds.reach", { reach: plainNumber(reach) });
}

/** What a grammar leaves of a row, from which all of p and q come. @param {Run} run @param {Row} row */
export function sayAllowed(run, { allowed, allowed_mass: mass }) {
  return run.say("rounds.allowed", { n: allowed ?? 0, all: run.start.vocab_size ?? 0, mass: plainNumber(mass ?? 0) });
}

/** @param {Run} run @param {DraftedToken} token */
function sayDiscarded(run, token) {
  const values = { token: quoted(run.say, token.text), q: plainNumber(token.q) };
  if (isCopy(run, token)) return run.say("rounds.went_on_copy", values);
  return run.say(run.start.greedy || token.q === 1 ? "rounds.went_on" : "rounds.drew", values);
}

/**
 * Where the branch of a discarded token was cut: the nearest judged token above it, or a sibling of its branch.
 *
 * @param {Run} run @param {Round} round @param {number} index
 */
function sayCut(run, round, index) {
  let top = index;
  while (parentOf(round, top) >= 0 && round.drafted[parentOf(round, top)].outcome === "discarded") top = parentOf(round, top);
  const above = round.drafted[parentOf(round, top)];
  if (above?.outcome === "rejected") return run.say("rounds.cut_after", { above: quoted(run.say, above.text) });
  if (isLossy(round)) return run.say("rounds.cut_typical");
  if (isBlock(run)) return run.say("rounds.cut_picked");
  const taken = siblings(round, top).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  if (!taken) return run.say("rounds.cut_path");
  return run.say(top === index ? "rounds.cut_sibling" : "rounds.cut_branch", { taken: quoted(run.say, taken.text) });
}

/** @param {Run} run @param {Round} round @param {number} index */
function sayGreedy(run, round, index) {
  const token = round.drafted[index];
  const opening = run.say(isCopy(run, token) ? "rounds.went_on_copy" : "rounds.greedy_choice", { token: quoted(run.say, token.text) });
  if (token.outcome === "accepted") return [opening, run.say("rounds.greedy_match")];
  const sibling = siblings(round, index).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  const choice = quoted(run.say, (sibling ?? round.next).text);
  return [opening, run.say(sibling ? "rounds.greedy_branch" : "rounds.greedy_refused", { choice })];
}

/** @param {Run} run @param {Round} round */
function sayNext(run, round) {
  const kind = nextKind(round);
  if (round.next.u === null && !isChosen(run, round.next)) return [sayDrawn(run, round)];
  if (kind === "plain") return [run.say("rounds.next_plain"), sayDrawn(run, round)];
  if (isLossy(round)) return [run.say("rounds.next_typical"), sayDrawn(run, round)];
  if (kind === "recovered") return sayRecovered(run, round);
  const clean = run.say(isTree(round) ? "rounds.next_clean_tree" : "rounds.next_clean", { n: acceptedIndexes(round).length });
  return [clean, run.say("rounds.next_free"), sayDrawn(run, round)];
}

/** @param {Run} run @param {Round} round */
function sayRecovered(run, round) {
  const refused = refusedHere(round);
  const values = { token: quoted(run.say, refused[0]?.text ?? ""), refused: refused.length, next: quoted(run.say, round.next.text) };
  const many = refused.length === 1 ? "" : "_many";
  if (isChosen(run, round.next)) return [run.say(`rounds.next_greedy${many}`, values)];
  return [run.say(`rounds.next_residual${isBlock(run) ? "_block" : many}`, values), sayDrawn(run, round)];
}

/** @param {Run} run @param {Round} round */
function sayDrawn(run, round) {
  const { next } = round;
  const token = quoted(run.say, next.text);
  if (next.u === null) return run.say(isChosen(run, next) ? "rounds.draw_greedy" : "rounds.draw_unknown", { token });
  const prob = plainNumber(next.prob);
  return isPlaced(next) ? run.say("rounds.draw", { token, prob, ...placeOfDraw(next) })
    : run.say("rounds.draw_unplaced", { token, prob, u: plainNumber(next.u) });
}

/** Start, u and end of the drawn piece, with as many digits as it takes to see them in this order. @param {any} draw */
export function placeOfDraw({ below, u, prob }) {
  const shown = plainNumber(prob);
  let digits = shown.includes("e") ? 9 : Math.max(2, decimalsOf(shown) + 1);
  const write = () => [below, u, Math.min(1, below + prob)].map((x) => x.toFixed(digits));
  const inOrder = (/** @type {string[]} */ [start, at, end]) => Number(start) <= Number(at) && Number(at) < Number(end);
  while (digits < 9 && !inOrder(write())) digits += 1;
  const [start, at, end] = write().map(written);
  return { start, u: at, end };
}
