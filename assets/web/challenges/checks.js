// What each challenge asks for, and how the page knows that it was met: by figures that it has measured itself. A check
// gives the values of the sentence that says so, or null.

import { fixed } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";

/** @typedef {{ settings: Record<string, any>, figures: any, pair: string }} Run made on this page */
/** @typedef {Record<string, string | number>} Values */
/** @typedef {{ name: string, run?(run: Run & { rounds: any[] }, earlier: Run[], say: import("../shared/words.js").Say): Values | null, trial?(trial: any): Values | null }} Challenge */

const FEW_RUNS = 1000;
const LONG_ENOUGH = 32; // tokens of a copied text
const MANY_COPIED = 3; // tokens per target pass

/** @type {Challenge[]} */
export const CHALLENGES = [
  { name: "turn", run: turned },
  { name: "coin", run: refused },
  { name: "copy", run: copied },
  { name: "liar", trial: caught },
];

/** @param {number} x */
const times = (x) => `${fixed(x, 2)}×`;

/** Two runs of a pair that differ in γ alone, of which the longer drafts were slower than plain decoding. @param {Run} run @param {Run[]} earlier */
function turned(run, earlier) {
  const others = ({ settings, pair }) => JSON.stringify({ ...settings, num_draft_tokens: null, seed: null, pair });
  const alike = (one) => typeof one.figures.speedup === "number" && typeof one.settings.num_draft_tokens === "number" && others(one) === others(run);
  const runs = [run, ...earlier].filter(alike);
  for (const fast of runs) {
    const slow = runs.find((one) => one.figures.speedup < 1 && one.settings.num_draft_tokens > fast.settings.num_draft_tokens);
    if (fast.figures.speedup > 1 && slow) {
      return { short: fast.settings.num_draft_tokens, fast: times(fast.figures.speedup), long: slow.settings.num_draft_tokens, slow: times(slow.figures.speedup) };
    }
  }
  return null;
}

/** A coin set by hand by which a token is refused that another coin would keep. @type {NonNullable<Challenge["run"]>} */
function refused({ settings, rounds }, _, say) {
  for (const [, round, place] of String(settings.coins ?? "").matchAll(/(\d+)\.(\d+)=/g)) {
    const token = rounds[Number(round) - 1]?.drafted[Number(place) - 1];
    if (token?.outcome === "rejected" && token.accept_prob > 0) {
      return { round, token: quoted(say, token.text), u: fixed(token.u, 2), pass: fixed(token.accept_prob, 2) };
    }
  }
  return null;
}

/** @param {Run} run */
function copied({ settings, figures }) {
  const many = settings.drafter === "prompt_lookup" && figures.tokens >= LONG_ENOUGH && figures.acceptance_length >= MANY_COPIED;
  return many ? { length: fixed(figures.acceptance_length, 2), tokens: figures.tokens } : null;
}

/** @param {any} trial */
function caught({ lossless, greedy, phase, verdict, n, rule_name: rule, p_value: p }) {
  const found = !lossless && !greedy && phase !== "running" && verdict.state === "different" && n < FEW_RUNS;
  return found ? { rule, n, p: p < 1e-6 ? `p < ${fixed(1e-6, 6)}` : `p = ${fixed(p, 6)}` } : null;
}
