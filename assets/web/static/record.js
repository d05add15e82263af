// A round as the page's elements are told of it: the same message that specviz/views/run_messages.py makes of its record.

import { probabilities } from "./sampling.js";

/** @typedef {import("./decoding.js").Round} Round */
/** @typedef {import("./tokenizer.js").Tokenizer} Tokenizer */
/** @typedef {[id: number, probability: number][]} Listed */

const TOP = 5; // how many of the likeliest tokens a row lists, each for target and drafter

/**
 * @param {Round} round @param {number} temperature @param {Tokenizer} tokenizer
 * @param {Map<number, string>} vocabulary learns the texts of all tokens that the round mentions
 */
export function recorded(round, temperature, tokenizer, vocabulary) {
  const { draft, verdict, coins, p } = round;
  const [n, greedy] = [draft.tokens.length, temperature === 0];
  const raw = (/** @type {Float32Array} */ logits, /** @type {Float32Array} */ probs) => (temperature === 1 ? probs : probabilities(logits, 1));
  const pRaw = round.logits.map((logits, i) => raw(logits, p[i]));
  const qRaw = draft.raw.map((logits, i) => raw(logits, draft.q[i]));
  const name = (/** @type {number} */ id) => {
    const text = tokenizer.chip(id);
    vocabulary.set(id, text);
    return text;
  };
  const drafted = draft.tokens.map((id, i) => {
    const judged = i <= verdict.kept;
    return {
      id, text: name(id), parent: i - 1, outcome: i < verdict.kept ? "accepted" : judged ? "rejected" : "discarded",
      p: p[i][id], q: draft.q[i][id], p_raw: pRaw[i][id], q_raw: qRaw[i]?.[id] ?? null,
      u: judged && !greedy ? coins.accept[i] : null, accept_prob: judged ? verdict.acceptProbs[i] : null,
    };
  });
  const leading = likeliest(verdict.nextProbs, TOP);
  const top = p.map((row, i) => {
    const ids = new Set([...likeliest(pRaw[i], TOP), ...(qRaw[i] ? likeliest(qRaw[i], TOP) : []), ...draft.tokens.slice(i, i + 1)]);
    const listed = (/** @type {Float32Array | undefined} */ probs) => (probs ? pairs(ids, probs) : []);
    const lists = { p: pairs(greedy ? likeliest(row, 1) : ids, row), q: listed(draft.q[i]),
      ...(i === verdict.kept && i < n && { residual: pairs(leading, verdict.nextProbs) }),
      ...(greedy && { p_raw: listed(pRaw[i]), q_raw: listed(qRaw[i]) }) };
    return Object.fromEntries(Object.entries(lists).filter(([, list]) => list.length));
  });
  for (const row of top) for (const list of Object.values(row)) for (const [id] of list) name(id);
  return {
    index: round.index, drafted, top, emitted: round.emitted, pieces: round.pieces, seconds: round.seconds.total, dropped: round.dropped,
    next: { id: verdict.next.token, text: name(verdict.next.token), kind: verdict.kept < n ? "recovered" : "bonus", ...drawn(round, greedy, leading, name) },
    stop_reason: round.stop,
  };
}

/**
 * How the token that ends a round was drawn: its coin, and where it and the likeliest lie on the line from 0 to 1, by id.
 *
 * @param {Round} round @param {boolean} greedy @param {number[]} leading @param {(id: number) => string} name
 */
function drawn({ verdict: { next, nextProbs }, coins }, greedy, leading, name) {
  if (greedy) return { u: null, prob: 1, below: null, line: [] };
  const ids = [...new Set([next.token, ...leading])].filter((id) => nextProbs[id] > 0).sort((a, b) => a - b);
  ids.forEach(name);
  const line = ids.map((id) => {
    let start = 0;
    for (let i = 0; i < id; i++) start += nextProbs[i];
    return [id, start / next.total, (start + nextProbs[id]) / next.total];
  });
  return { u: coins.next, prob: nextProbs[next.token], below: next.start / next.total, line };
}

/** The ids of the largest, the first of equals first. @param {Float32Array} row @param {number} count */
function likeliest(row, count) {
  /** @type {number[]} */
  const best = [];
  for (let id = 0; id < row.length; id++) {
    if (best.length === count && !(row[id] > row[best[count - 1]])) continue;
    const place = best.findIndex((other) => row[id] > row[other]);
    best.splice(place < 0 ? best.length : place, 0, id);
    best.length = Math.min(best.length, count);
  }
  return best;
}

/** Likeliest first, without those of probability 0. @param {Iterable<number>} ids @param {Float32Array} probs @returns {Listed} */
const pairs = (ids, probs) => Array.from(ids, (id) => /** @type {[number, number]} */ ([id, probs[id]])).filter(([, p]) => p > 0).sort((a, b) => b[1] - a[1]);
