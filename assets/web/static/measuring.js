// The measured speedup: plain decoding and speculation take turns on the same text, part by part, so that whatever else the
// machine does affects both alike; several times over, and the ratio of their times has an interval.

/** @typedef {import("./decoding.js").Settings} Settings */
/** @typedef {import("./decoding.js").Round} Round */

const PART = 8; // new tokens of a turn, at least
const [LEAST, MOST, BUDGET] = [5, 12, 4000]; // repeats, and the milliseconds after which no further one begins

/** Student's t, 95 %, by degrees of freedom less one: a two-sided interval of 90 %. */
const QUANTILES = [6.314, 2.92, 2.353, 2.132, 2.015, 1.943, 1.895, 1.86, 1.833, 1.812, 1.796];

/**
 * How many times as fast as plain decoding: the geometric mean over the repeats, and its 90 % interval. Each repeat has the
 * next seed. The first repeat warms up and is not counted.
 *
 * @param {(settings: Settings) => Iterator<Round>} plain starts the text once more
 * @param {(settings: Settings) => Iterator<Round>} speculative
 * @param {Settings} settings
 * @param {() => Promise<boolean>} pause between parts; whether to go on
 * @returns {Promise<{ speedup: number, speedup_low: number, speedup_high: number } | null>} null if it was stopped
 */
export async function measure(plain, speculative, settings, pause) {
  /** @type {number[]} */
  const logarithms = [];
  const began = performance.now();
  for (let repeat = 0; repeat <= MOST && (repeat <= LEAST || performance.now() - began < BUDGET); repeat++) {
    const seeded = { ...settings, seed: settings.seed + repeat };
    const lanes = [plain, speculative].map((start) => ({ steps: start(seeded), tokens: 0, seconds: 0, over: false }));
    for (let until = PART; !lanes.every((lane) => lane.over); until += PART) {
      for (const lane of until % (2 * PART) ? lanes : lanes.toReversed()) turn(lane, until);
      if (!(await pause())) return null;
    }
    const [one, other] = lanes.map((lane) => lane.seconds / lane.tokens);
    if (repeat) logarithms.push(Math.log(one / other));
  }
  const mean = logarithms.reduce((sum, each) => sum + each, 0) / logarithms.length;
  const variance = logarithms.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (logarithms.length - 1);
  const reach = QUANTILES[logarithms.length - 2] * Math.sqrt(variance / logarithms.length);
  const [speedup, speedup_low, speedup_high] = [mean, mean - reach, mean + reach].map(Math.exp);
  return { speedup, speedup_low, speedup_high };
}

/** Decodes on to `until` new tokens. @param {{ steps: Iterator<Round>, tokens: number, seconds: number, over: boolean }} lane @param {number} until */
function turn(lane, until) {
  const began = performance.now();
  while (lane.tokens < until && !lane.over) {
    const { value, done } = lane.steps.next();
    if (done) lane.over = true;
    else lane.tokens += value.emitted.length;
  }
  lane.seconds += (performance.now() - began) / 1000;
}
