// A run as far as its messages have come. Plain data; nothing here draws.

/** @typedef {import("../shared/words.js").Say} Say */
/** @typedef {import("./types.js").Round} Round */
/** @typedef {import("./types.js").Figures} Figures */
/** @typedef {import("./types.js").Start} Start */
/** @typedef {import("./types.js").Gap} Gap */

export class Run {
  /** @param {Say} say @param {string | null} key what the messages call the run; null: none yet */
  constructor(say, key) {
    this.say = say;
    this.key = key;
    /** @type {"empty" | "waiting" | "running" | "finished" | "error"} */
    this.phase = key === null ? "empty" : "running";
    this.status = say(key === null ? "rounds.no_run" : "rounds.running");
    this.note = "";
    /** @type {Start} the message that began it */
    this.start = {};
    /** @type {(Round | null)[]} as the messages carry them; null where one never arrived */
    this.rounds = [];
    this.text = "";
    /** The name of the pair that made it; empty while nobody has said. */
    this.pair = "";
    /** @type {Map<number, string>} */
    this.vocabulary = new Map();
    /** @type {Figures} */
    this.figures = {};
    /** Whether more is to come after its end: its measured speedup. */
    this.awaited = false;
    /** @type {Set<number>} gaps that were asked about, by their first round */
    this.asked = new Set();
  }

  /** A round that is here; where it may be missing, `rounds` says so. @param {number} index */
  at(index) {
    return /** @type {Round} */ (this.rounds[index]);
  }

  /** The rounds that never arrived. */
  get missing() {
    return this.rounds.flatMap((round, index) => (round ? [] : [index]));
  }

  /** Whether more is to come, its measured speedup included. */
  get busy() {
    return this.phase === "waiting" || this.phase === "running" || this.awaited;
  }

  /** The run once it has ended and all of it is here; null before. */
  get finished() {
    const { key, start, rounds, text, figures } = this;
    const whole = this.phase === "finished" && rounds.length && rounds.every(Boolean);
    return whole ? { run: key, start, rounds, text, figures } : null;
  }

  /**
   * Adds the rounds of a `rounds` message, which begin where the run ends or fill holes; whether holes were filled.
   *
   * @param {{ [field: string]: any }} message
   */
  add(message) {
    for (const [id, text] of Object.entries(message.vocabulary ?? {})) this.vocabulary.set(Number(id), text);
    this.measure(message.figures);
    if (message.first === null) return false;
    let filled = false;
    message.rounds.forEach((/** @type {Round} */ round, /** @type {number} */ i) => {
      const index = message.first + i;
      this.#learn(round);
      if (index === this.rounds.length) this.rounds.push(round);
      else if (!this.rounds[index]) filled = Boolean((this.rounds[index] = round));
      else return;
      if (!filled) this.text += round.pieces.join("");
    });
    if (filled) this.text = this.rounds.map((round) => (round ? round.pieces.join("") : "")).join("");
    return filled;
  }

  /** @param {Round} round */
  #learn(round) {
    for (const { id, text } of [...round.drafted, round.next]) if (id !== null) this.vocabulary.set(id, text);
  }

  /** @param {Figures | undefined} figures */
  measure(figures) {
    if (figures) this.figures = { ...this.figures, ...figures };
  }

  /**
   * Rounds before `count` that never arrived become holes, seen by the reader. Returns the gap the first time, so that
   * it can be asked for once.
   *
   * @param {number} count
   * @returns {Gap | null}
   */
  leaveHoles(count) {
    const first = this.rounds.length;
    if (this.key === null || first >= count) return null;
    while (this.rounds.length < count) this.rounds.push(null);
    if (this.asked.has(first)) return null;
    this.asked.add(first);
    return { run: this.key, first, count };
  }
}
