// A run's headline figures and charts, counted round by round, as specviz/records/metrics.py and views/charts.py count them.

/** @typedef {import("./decoding.js").Round} Round */

const MOST_POINTS = 240; // of a chart; beyond that neighbouring rounds share one
const PARTS = 16; // of the text, whose own rate is drawn

export class Counts {
  /** @type {(number | null)[]} α after each round */
  rates = [];
  /** @type {number[]} emitted by each round */
  emitted = [];
  /** @type {number[][]} draft tokens accepted and judged in each round */
  verdicts = [];
  /** @type {number[]} draft tokens kept, by position */
  acceptedAt = [];
  /** @type {number[]} and judged */
  judgedAt = [];
  seconds = { draft: 0, verify: 0, total: 0, prefill: 0 };

  /** @param {Round} round */
  add({ draft, verdict, emitted, seconds }) {
    const judged = Math.min(draft.tokens.length, verdict.kept + 1);
    for (let i = 0; i < draft.tokens.length; i++) {
      this.judgedAt[i] = (this.judgedAt[i] ?? 0) + Number(i < judged);
      this.acceptedAt[i] = (this.acceptedAt[i] ?? 0) + Number(i < verdict.kept);
    }
    this.emitted.push(emitted.length);
    this.verdicts.push([verdict.kept, judged]);
    this.rates.push(this.rate);
    this.seconds.draft += seconds.draft;
    this.seconds.verify += seconds.verify;
    this.seconds.total += seconds.total;
    this.seconds.prefill += seconds.prefill;
  }

  /** α: accepted / judged draft tokens. */
  get rate() {
    const judged = sum(this.judgedAt);
    return judged ? sum(this.acceptedAt) / judged : null;
  }

  get figures() {
    const [tokens, passes] = [sum(this.emitted), this.emitted.length];
    return {
      acceptance_length: passes ? 1 + sum(this.acceptedAt) / passes : null, acceptance_rate: this.rate, tokens, target_passes: passes,
      tokens_per_second: passes ? tokens / (this.seconds.prefill + this.seconds.total) : null,
    };
  }

  /** Neighbouring rounds: the last round, the last token of the text, draft tokens accepted, and judged. */
  get parts() {
    const passes = this.emitted.length;
    const size = Math.max(1, Math.ceil(passes / PARTS));
    return Array.from({ length: Math.ceil(passes / size) }, (_, i) => {
      const last = Math.min((i + 1) * size, passes);
      const verdicts = this.verdicts.slice(i * size, last);
      return [last, sum(this.emitted.slice(0, last)), ...[0, 1].map((which) => sum(verdicts.map((verdict) => verdict[which])))];
    });
  }

  /** By place on the page. */
  get charts() {
    const [passes, { draft, verify, total }] = [this.emitted.length, this.seconds];
    const step = Math.max(1, Math.ceil(passes / MOST_POINTS));
    const shown = [...this.rates.keys()].filter((i) => (i + 1) % step === 0 || i === passes - 1);
    const means = Array.from({ length: Math.ceil(passes / step) }, (_, i) => mean(this.emitted.slice(i * step, (i + 1) * step)));
    return {
      0: { rounds: shown.map((i) => i + 1), rates: shown.map((i) => this.rates[i]), parts: this.parts },
      1: { rounds: passes, step, means, mean: passes ? mean(this.emitted) : null },
      2: { accepted: this.acceptedAt, judged: this.judgedAt, trees: false },
      3: { rounds: passes, milliseconds: [draft, verify, total - draft - verify].map((each) => (1000 * each) / Math.max(1, passes)) },
    };
  }
}

/** @param {number[]} values */
const sum = (values) => values.reduce((total, each) => total + each, 0);
/** @param {number[]} values */
const mean = (values) => sum(values) / values.length;
