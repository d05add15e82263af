// Shows a run at a reader's speed: it is over before anybody has seen a round of it. Its first rounds are told stage by
// stage, the next ones a round at a time, the rest ever faster, the whole in about 15 seconds. A run that takes longer than
// that is shown as it comes.

import { keep, kept } from "../../shared/kept.js";
import { wantsStillness } from "../../shared/dom.js";
import { START, endOf } from "../place.js";
import { stageAt, stagesOf } from "../record/stages.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Place} Place */
/** @typedef {import("../types.js").Stage} Stage */

const PACE = [1, 0.35]; // of the rounds told stage by stage: how long their stages stay, as a share of DWELL
const SINGLE = 6; // rounds after these that stay for DWELL_ROUND each

/** How long the stages of the first round stay, ms, and how long those of a kind do together at most. */
const DWELL = { draft: 300, pass: 1500, decide: 1400, next: 1700, missing: 500 };
const MOST = 2800;
const LEISURE = 1.8; // the same, of a recording: nobody waits for what it comes to
const DWELL_START = 600;
const DWELL_ROUND = 600;
const REST = 2500; // ms for all other rounds, in steps of at least FRAME
const FRAME = 60;

const ENOUGH = 2; // runs skipped: such a reader is not made to watch again

/** @param {View} view */
export const isTold = (view, /** @type {number} */ round) => view.playback.showing && round < PACE.length;

/** Whether a run that begins is played to its reader; one who wants no motion steps through it. */
export const wantsToWatch = () => (kept("skipped", true) ?? 0) < ENOUGH;

/** Notes that a run was skipped, or asked for again. @param {boolean} skipped */
export function noteSkipped(skipped) {
  keep("skipped", skipped ? (kept("skipped", true) ?? 0) + 1 : 0, true);
}

export const playsByItself = () => !wantsStillness();

/** How many of the rounds behind the single ones pass in a step. @param {View} view */
function stride(view) {
  const rest = view.drawn - PACE.length - SINGLE;
  return Math.max(1, Math.ceil((rest * FRAME) / REST));
}

/** The place that is shown after this one; null at the end of what has arrived. @param {View} view @param {Place} place @returns {Place | null} */
export function shownAfter(view, { round, stage }) {
  const over = stage === endOf(view.run, round).stage;
  const next = over ? round + 1 : round;
  if (next >= view.drawn) return null;
  if (next < PACE.length) return { round: next, stage: over ? 1 : stage + 1 };
  const steps = next < PACE.length + SINGLE ? 1 : stride(view);
  return endOf(view.run, Math.min(next + steps, view.drawn) - 1);
}

/** How long a place stays, ms. @param {View} view @param {Place} place */
export function staysFor(view, { round, stage }) {
  if (!stage) return DWELL_START;
  if (round >= PACE.length + SINGLE) return Math.min(DWELL_ROUND / 2, (REST * stride(view)) / (view.drawn - PACE.length - SINGLE));
  if (round >= PACE.length) return DWELL_ROUND;
  const { kind } = stageAt(view.run, { round, stage });
  const alike = stagesOf(view.run, view.run.rounds[round]).filter((one) => one.kind === kind).length;
  return PACE[round] * (view.run.start.recorded ? LEISURE : 1) * Math.min(DWELL[kind], MOST / alike);
}

/** How many times slower a run that is over is shown than it was; null where its times are not all known. @param {View} view */
export function slowness(view) {
  const { rounds, phase } = view.run;
  if (phase !== "finished" || view.drawn < rounds.length) return null;
  const seconds = rounds.reduce((sum, round) => sum + (round?.seconds ?? NaN), 0);
  let shown = 0;
  for (let at = /** @type {Place | null} */ (START); at; at = shownAfter(view, at)) shown += staysFor(view, at);
  const times = shown / 1000 / view.playback.speed / seconds;
  return times > 1.5 ? times : null;
}
