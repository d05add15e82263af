// Those that propose. Each has `propose(committed, budget, coins)`, a draft of at most `budget` tokens, and `keep(length)`,
// which says how many of the tokens it has read stay.

import { draw, probabilities } from "./sampling.js";

/**
 * @typedef {import("./llama.js").Reader} Reader
 * @typedef {{ tokens: number[], q: Float32Array[], raw: Float32Array[], edge: number }} Draft  q: what each token was drawn
 *   from; raw: a model's logits, none of copies; edge: how near the nearest draw was to another token
 */

/** @returns {Draft} */
const nothing = () => ({ tokens: [], q: [], raw: [], edge: Infinity });

/** Plain decoding. */
export class Plain {
  propose() {
    return nothing();
  }

  keep() {}
}

/** Draws from the draft model, one pass for each token. */
export class DraftModel {
  /** @param {Reader} reader @param {number} temperature */
  constructor(reader, temperature) {
    this.reader = reader;
    this.temperature = temperature;
  }

  /** @param {readonly number[]} committed @param {number} budget @param {number[]} coins */
  propose(committed, budget, coins) {
    const draft = nothing();
    for (const u of coins.slice(0, budget)) {
      const [logits] = this.reader.read([...committed, ...draft.tokens], 1);
      const q = probabilities(logits, this.temperature);
      const drawn = draw(q, u);
      draft.tokens.push(drawn.token);
      draft.q.push(q);
      draft.raw.push(logits);
      draft.edge = Math.min(draft.edge, drawn.edge);
    }
    return draft;
  }

  /** @param {number} length */
  keep(length) {
    this.reader.keep(length);
  }
}

const [LONGEST, SHORTEST] = [4, 1]; // tokens that must match

/**
 * Copies what followed the last few tokens earlier in the text: after the longest match, and of several places the last one
 * that offers a full draft, else the one that offers most. Saxena 2023, prompt lookup decoding; arXiv 2304.04487.
 */
export class PromptLookup {
  /** @param {number} vocabulary */
  constructor(vocabulary) {
    this.vocabulary = vocabulary;
  }

  /** @param {readonly number[]} committed @param {number} budget @returns {Draft} */
  propose(committed, budget) {
    const tokens = this.#continuation(committed, budget);
    return { ...nothing(), tokens, q: tokens.map((token) => this.#point(token)) };
  }

  /** @param {readonly number[]} text @param {number} budget */
  #continuation(text, budget) {
    for (let size = Math.min(LONGEST, text.length); size >= SHORTEST && budget > 0; size--) {
      const end = text.length - size;
      const matches = (/** @type {number} */ place) => text.slice(place - size, place).every((token, i) => token === text[end + i]);
      const places = [...text.keys()].filter((place) => place >= size && matches(place));
      const start = places.findLast((place) => place + budget <= text.length) ?? places[0];
      if (start !== undefined) return text.slice(start, start + budget);
    }
    return [];
  }

  /** A copy is certain: q is 1. @param {number} token */
  #point(token) {
    const q = new Float32Array(this.vocabulary);
    q[token] = 1;
    return q;
  }

  keep() {}
}
