// Speculative decoding: draft, verify in one pass, keep what the rule accepts, repeat. `rounds` is the loop;
// specviz/decoding/reference.py says the same in Python, and the same coins give the same text.

import { TorchGenerator } from "./random.js";
import { judge, lead, probabilities } from "./sampling.js";

/**
 * @typedef {import("./llama.js").Reader} Reader
 * @typedef {import("./drafters.js").Draft} Draft
 * @typedef {import("./tokenizer.js").Tokenizer} Tokenizer
 * @typedef {{ prompt: string, drafter: string, num_draft_tokens: number, temperature: number, max_new_tokens: number, seed: number, coins: string }} Settings
 * @typedef {{ propose(committed: readonly number[], budget: number, coins: number[]): Draft, keep(length: number): void }} Drafter
 * @typedef {{ draft: number[], accept: number[], next: number }} Coins one round's
 * @typedef {{
 *   index: number, draft: Draft, logits: Float32Array[], p: Float32Array[], coins: Coins, verdict: ReturnType<typeof judge>,
 *   emitted: number[], pieces: string[], dropped: number, stop: string | null, edge: number,
 *   seconds: { draft: number, verify: number, total: number, prefill: number },
 * }} Round  edge: how near the nearest decision was to another, in logits
 */

/**
 * The rounds of one text, as they are made.
 *
 * @param {Reader} target
 * @param {Drafter} drafter
 * @param {Tokenizer} tokenizer
 * @param {Settings} settings
 * @returns {Generator<Round>}
 */
export function* rounds(target, drafter, tokenizer, { prompt, num_draft_tokens: gamma, temperature, max_new_tokens: most, seed, coins: byHand }) {
  const [committed, text] = [tokenizer.encode(prompt), tokenizer.pieces()];
  const first = committed.length;
  const [flip, end] = [coins(seed, gamma, byHand), Math.min(first + most, target.model.positions)];
  const started = performance.now();
  if (first > 1) target.read(committed.slice(0, -1), 0);
  let prefill = performance.now() - started;
  /** @type {string | null} */
  let stop = null;
  for (let index = 0; !stop; index++) {
    const began = performance.now();
    const flipped = flip();
    // 1. Draft: no deeper than could be kept, because the round adds one more.
    const draft = drafter.propose(committed, Math.min(gamma, end - committed.length - 1), flipped.draft);
    const drafted = performance.now();
    // 2. Verify: one pass of the target over all of them.
    const logits = target.read([...committed, ...draft.tokens], draft.tokens.length + 1);
    const verified = performance.now();
    // 3. Judge.
    const p = logits.map((row) => probabilities(row, temperature));
    const verdict = judge(draft, p, flipped);
    // 4. Keep: what was read of refused tokens is forgotten.
    target.keep(committed.length + verdict.kept);
    drafter.keep(committed.length + verdict.kept);
    // 5. Yield.
    const decided = [...draft.tokens.slice(0, verdict.kept), verdict.next.token];
    const [emitted, pieces] = [/** @type {number[]} */ ([]), /** @type {string[]} */ ([])];
    for (const token of decided) {
      committed.push(token);
      emitted.push(token);
      pieces.push(text.push(token));
      if (tokenizer.special.has(token)) stop = "eos";
      else if (committed.length === end) stop = end - first === most ? "length" : "context";
      if (stop) break;
    }
    if (stop) pieces[pieces.length - 1] += text.flush();
    const edge = temperature === 0 ? Math.min(...logits.slice(0, verdict.kept + 1).map(lead)) : temperature * Math.min(draft.edge, verdict.edge);
    const seconds = { draft: drafted - began, verify: verified - drafted, total: performance.now() - began, prefill };
    for (const name of /** @type {(keyof typeof seconds)[]} */ (Object.keys(seconds))) seconds[name] /= 1000;
    prefill = 0;
    yield { index, draft, logits, p, coins: flipped, verdict, emitted, pieces, dropped: decided.length - emitted.length, stop, edge, seconds };
  }
}

/**
 * All randomness of a run is one stream from one seed, dealt round by round, but for the coins that were set by hand:
 * `3.2=0.41` the one that judges the second draft token of round 3, `5.next=0.07` the one that ends round 5.
 *
 * @param {number} seed @param {number} gamma @param {string} byHand
 * @returns {() => Coins}
 */
function coins(seed, gamma, byHand) {
  const [generator, set] = [new TorchGenerator(seed), new Map()];
  for (const [, place, u] of byHand.matchAll(/(\d+\.(?:next|\d+))=(\S+)/g)) set.set(place, Math.fround(Number(u)));
  let round = 0;
  return () => {
    round++;
    const flips = (/** @type {number} */ count) => Array.from({ length: count }, () => generator.uniform());
    const [draft, accept, [next]] = [flips(gamma), flips(gamma), flips(1)];
    return { draft, accept: accept.map((u, i) => set.get(`${round}.${i + 1}`) ?? u), next: set.get(`${round}.next`) ?? next };
  };
}
