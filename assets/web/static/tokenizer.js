// Text to token ids and back: byte-level byte-pair encoding, from a tokenizer.json.
//
// Sennrich et al. 2016, arXiv 1508.07909, on bytes as in GPT-2: each byte is written as one visible character.

const [ENCODER, DECODER] = [new TextEncoder(), { ignoreBOM: true }];

/** How a text is cut before anything is merged: GPT-2's pattern, with Unicode's own idea of white space. */
const WORDS = /'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** For each byte the character that stands for it: itself if it is visible in Latin-1, else one from 256 on. */
const LETTERS = (() => {
  const visible = (/** @type {number} */ byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let others = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(visible(byte) ? byte : others++));
})();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

/** @typedef {{ model: { vocab: Record<string, number>, merges: [string, string][] }, added_tokens: { id: number, content: string }[] }} File */

export class Tokenizer {
  /** @type {Map<string, number[]>} the ids of words that were met before */
  #known = new Map();

  /** @param {File} file */
  constructor({ model, added_tokens }) {
    this.ids = new Map(Object.entries(model.vocab));
    this.ranks = new Map(model.merges.map((pair, rank) => [pair.join(" "), rank]));
    this.special = new Map(added_tokens.map(({ id, content }) => [id, content]));
    /** @type {Uint8Array[]} by id; of special tokens nothing, because texts do not show them */
    this.bytes = [];
    for (const [token, id] of this.ids) this.bytes[id] = Uint8Array.from(this.special.has(id) ? [] : token, (letter) => BYTES.get(letter) ?? 0);
  }

  /** @param {string} text @returns {number[]} */
  encode(text) {
    for (const [id, name] of this.special) {
      const parts = text.split(name);
      if (parts.length > 1) return parts.flatMap((part, i) => [...(i ? [id] : []), ...this.encode(part)]);
    }
    return (text.match(WORDS) ?? []).flatMap((word) => this.#word(word));
  }

  /** @param {string} word */
  #word(word) {
    const known = this.#known.get(word);
    if (known) return known;
    const parts = Array.from(ENCODER.encode(word), (byte) => LETTERS[byte]);
    for (;;) {
      let [best, place] = [Infinity, -1];
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, place] = [rank, i];
      }
      if (place < 0) break;
      parts.splice(place, 2, parts[place] + parts[place + 1]);
    }
    const ids = parts.map((part) => /** @type {number} */ (this.ids.get(part)));
    this.#known.set(word, ids);
    return ids;
  }

  /** A token as it stands inside a text; bytes that are only part of a character are U+FFFD. @param {number} id */
  chip(id) {
    return this.special.get(id) ?? new TextDecoder("utf-8", DECODER).decode(this.bytes[id]);
  }

  /**
   * Cuts a growing text into a piece for each token: one that ends inside a character has an empty piece, and the one that
   * completes the character carries all of it. `push` takes a token, `flush` gives what was held back at the end.
   */
  pieces() {
    const decoder = new TextDecoder("utf-8", DECODER);
    return {
      push: (/** @type {number} */ id) => decoder.decode(this.bytes[id], { stream: true }),
      flush: () => decoder.decode(),
    };
  }
}
