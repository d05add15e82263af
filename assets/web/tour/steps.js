// The tour's steps: what each one runs on the page, and what it says about the run that came out. Every figure is taken
// from that run, as <specviz-run> tells it, never from here.

import { compared, fixed, quotient } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";
import { liveRun } from "../shared/live.js";
import { speedupVerdict } from "../shared/verdict.js";

/** @typedef {import("./element.js").SpecvizTour} Tour */
/** @typedef {import("../run/types.js").Round} Round */
/** @typedef {import("../run/types.js").Index} Index */
/** @typedef {{ run: string, rounds: Round[], text: string, figures: any, start: any }} Finished */

/**
 * What a step brought: a sentence, the token to look at as [round, index], and what to ring.
 *
 * @typedef {{ said: string, choice?: [number, Index], rings(): (Element | null | undefined)[] }} Shown
 * @typedef {(settings: Record<string, any>, measure?: boolean) => Promise<Finished>} Ask measure: its speedup as well
 * @typedef {{ name: string, show(tour: Tour, ask: Ask): Promise<Shown>, lab?: string }} Step lab: the tab it points to
 */

/** Every control, so that a step shows the same whatever the visitor set before. @param {Tour} tour @param {object} [changes] */
const settings = ({ plan }, changes = {}) => ({
  prompt: plan.prompts.story, drafter: "draft_model", num_draft_tokens: plan.short_draft, branches: 1, confidence: 0,
  temperature: 0, top_k: 0, top_p: 1, min_p: 0, rule: "auto", chat: false, max_new_tokens: plan.new_tokens, seed: 0,
  coins: "", grammar: "",
  ...changes,
});

/** @param {string} selector */
export const inView = (selector) => liveRun()?.shadow.querySelector(selector);
/** @param {string} name */
const figure = (name) => inView(`[data-figure="${name}"]`)?.parentElement;
/** @param {number} round */
const row = (round) => inView(`.round[data-round="${round}"] .chips`);

/**
 * What the sentences about a whole run quote, as the page writes it above the text. Tokens a second are not among it: those
 * of two runs, each by itself, say less about a speedup than the page does, which has both take turns.
 *
 * @param {Tour} tour @param {Finished} run
 */
function headline({ say }, { figures }) {
  const { decided, open, text } = speedupVerdict(say, figures.speedup, figures.speedup_low, figures.speedup_high);
  const known = (/** @type {any} */ x, /** @type {(x: number) => string} */ format) => (typeof x === "number" ? format(x) : say("tour.no_value"));
  return {
    tokens: figures.tokens,
    passes: figures.target_passes,
    length: known(figures.acceptance_length, (x) => fixed(x, 2)),
    share: known(figures.acceptance_rate, (x) => `${Math.round(100 * x)}\u202f%`),
    fast: open ? text : say(decided ? "tour.fast" : "tour.not_measured", { speedup: text }),
  };
}

/** @param {Finished} run @param {string} outcome */
const countOf = (run, outcome) => run.rounds.flatMap((round) => round.drafted).filter((token) => token.outcome === outcome).length;

/** @type {Step["show"]} */
async function showPass(tour, ask) {
  const run = await ask(settings(tour, { drafter: "plain" }));
  return { said: tour.say("tour.pass_said", headline(tour, run)), rings: () => [figure("acceptance_length")] };
}

/** @type {Step["show"]} */
async function showDraft(tour, ask) {
  const run = await ask(settings(tour), true);
  return { said: tour.say("tour.draft_said", headline(tour, run)), rings: () => [figure("acceptance_length"), figure("acceptance_rate"), figure("speedup")] };
}

/** The first refusal of the run on the screen; of a new run where there is none to see. @type {Step["show"]} */
async function showRound(tour, ask) {
  const { say } = tour;
  const isChain = (/** @type {Round} */ round) => round.drafted.every((token, place) => token.parent === place - 1);
  const isRefused = (/** @type {Round} */ round) => round.next.kind === "recovered";
  const hasKept = (/** @type {Round} */ round) => round.drafted.some((token) => token.outcome === "accepted");
  // Rather one in which something was kept as well.
  const find = (/** @type {any} */ run) => {
    if (!run?.rounds.every(isChain)) return -1;
    const both = run.rounds.findIndex((/** @type {Round} */ round) => isRefused(round) && hasKept(round));
    return both < 0 ? run.rounds.findIndex(isRefused) : both;
  };
  let run = /** @type {any} */ (liveRun()?.finished);
  if (find(run) < 0) run = await ask(settings(tour));
  tour.page.openTab("generate");
  const at = find(run);
  /** @type {Round} */
  const round = run.rounds[Math.max(at, 0)];
  const accepted = round.drafted.filter((token) => token.outcome === "accepted").length;
  const values = { round: round.index + 1, drafted: round.drafted.length, accepted, next: quoted(say, round.next.text), emitted: round.emitted.length };
  const said = at < 0 ? say("tour.round_clean", values)
    : say("tour.round_said", { ...values, refused: quoted(say, round.drafted[accepted].text), discarded: round.drafted.length - accepted - 1 });
  return { said, choice: [round.index, at < 0 ? "next" : accepted], rings: () => [row(round.index)] };
}

/** The likeliest draft token whose coin was an open one. @type {Step["show"]} */
async function showCoin(tour, ask) {
  const { say } = tour;
  const run = await ask(settings(tour, { temperature: 0.8 }));
  const coins = run.rounds.flatMap((round) => round.drafted.flatMap((token, index) =>
    (token.u === null || token.accept_prob === null ? [] : [{ round, token, index, u: token.u, pass: token.accept_prob }])));
  const decided = coins.filter(({ pass }) => pass > 0 && pass < 1);
  if (!decided.length) return { said: say("tour.coin_none"), rings: () => [] };
  const open = decided.filter(({ pass }) => Math.abs(pass - 0.5) < 0.3);
  const one = (open.length ? open : decided).reduce((best, other) => ((other.token.q ?? 0) > (best.token.q ?? 0) ? other : best));
  const { round, token, index } = one;
  const [u, threshold] = compared(one.u, one.pass);
  const values = { round: round.index + 1, token: quoted(say, token.text), u, next: quoted(say, round.next.text),
    ratio: `${quotient(token.p, token.q, threshold)} = ${threshold}` };
  const said = token.outcome === "accepted" ? say("tour.coin_accepted", values) : say("tour.coin_rejected", values);
  return { said, choice: [round.index, index], rings: () => [row(round.index)] };
}

/** @type {Step["show"]} */
async function showMatch(tour, ask) {
  // Where the embedded pair shows it in any precision: greedy texts part at near-ties, and on some both drafters do well.
  const prompt = tour.plan.prompts.story_sea;
  const [first, second] = [await ask(settings(tour, { prompt })), await ask(settings(tour, { prompt, drafter: "early_exit", exit_layer: 1 }))];
  const [good, bad] = [first, second].map((run) => headline(tour, run));
  const values = { good: good.share, good_length: good.length, bad: bad.share, bad_length: bad.length };
  // On other models it may be the other way round.
  const alike = (second.figures.acceptance_rate ?? 0) >= (first.figures.acceptance_rate ?? 0) ? [tour.say("tour.match_alike")] : [];
  return { said: [tour.say("tour.match_said", values), ...alike].join(" "), rings: () => [figure("acceptance_rate"), figure("acceptance_length")] };
}

/** @type {Step["show"]} */
async function showLong(tour, ask) {
  const { plan } = tour;
  const first = await ask(settings(tour), true);
  const run = await ask(settings(tour, { num_draft_tokens: plan.long_draft }), true);
  const [short, long] = [first, run].map((one) => headline(tour, one));
  const values = {
    short: plan.short_draft, short_length: short.length, short_fast: short.fast, long: plan.long_draft, long_length: long.length, long_fast: long.fast,
    discarded: countOf(run, "discarded"), drafted: run.rounds.reduce((sum, round) => sum + round.drafted.length, 0),
  };
  const unused = run.rounds.map((round) => round.drafted.filter((token) => token.outcome === "discarded").length);
  const worst = unused.indexOf(Math.max(...unused));
  const position = Math.max(0, run.rounds[worst].drafted.findIndex((token) => token.outcome === "rejected"));
  // Where guesses are good, or many tokens cost a pass little, a long draft is not too long.
  const paid = (run.figures.speedup ?? 0) > (first.figures.speedup ?? Infinity) ? [tour.say("tour.long_paid")] : [];
  return { said: [tour.say("tour.long_said", values), ...paid].join(" "), choice: [worst, position], rings: () => [row(worst)] };
}

/** @type {Step["show"]} */
async function showCopy(tour, ask) {
  const run = await ask(settings(tour, { prompt: tour.plan.prompts.repeats, drafter: "prompt_lookup" }));
  return { said: tour.say("tour.copy_said", headline(tour, run)), rings: () => [figure("acceptance_length"), figure("acceptance_rate")] };
}

/** @type {Step["show"]} */
async function showSame(tour, ask) {
  const { say } = tour;
  const plain = await ask(settings(tour, { drafter: "plain" }));
  const speculative = await ask(settings(tour));
  const [one, other] = [plain, speculative].map((run) => run.rounds.flatMap((round) => round.emitted));
  const rings = () => [inView("[part=text-card]")];
  const parting = one.findIndex((id, place) => id !== other[place]);
  if (parting < 0 && one.length === other.length) {
    const passes = { plain: plain.rounds.length, speculative: speculative.rounds.length };
    return { said: say("tour.same_equal", { tokens: one.length, ...passes }), rings };
  }
  const n = parting < 0 ? one.length : parting;
  const word = (/** @type {Finished} */ run) => quoted(say, run.rounds.flatMap((round) => round.pieces)[n] ?? "");
  return { said: say("tour.same_parted", { n, plain: word(plain), speculative: word(speculative) }), rings };
}

/** The texts of a step are tour.NAME_title, _text, and _lab. @type {Step[]} */
export const STEPS = [
  { name: "pass", show: showPass, lab: "why" },
  { name: "draft", show: showDraft },
  { name: "round", show: showRound },
  { name: "coin", show: showCoin },
  { name: "match", show: showMatch },
  { name: "long", show: showLong, lab: "why" },
  { name: "copy", show: showCopy },
  { name: "same", show: showSame, lab: "lossless" },
];
