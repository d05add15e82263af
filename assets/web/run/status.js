// What stands above the text and the list: settings, notes, and the mark of a lossy rule.

import { setText } from "../shared/dom.js";
import { plainNumber } from "../shared/numbers.js";
import { isLossy } from "./record/records.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Round} Round */

/** @param {View} view */
export function metaLine(view) {
  if (!view.run.key) return "";
  const { drafter, num_draft_tokens: gamma, settings, greedy, machine } = view.run.start;
  const parts = [drafter ? `${drafter}, γ = ${gamma}` : view.say("rounds.plain_decoding")];
  parts.push(settings || view.say(greedy ? "rounds.greedy" : "rounds.sampled"));
  if (view.run.figures.tokens) parts.push(`${view.say("rounds.tokens", { n: view.run.figures.tokens })} ${view.say("rounds.in_passes", { n: view.run.figures.target_passes })}`);
  if (view.run.figures.reach != null) parts.push(view.say("rounds.reach_mean", { reach: plainNumber(view.run.figures.reach) }));
  if (machine) parts.push(view.say("rounds.speedup_on", { machine }));
  return parts.join(" · ");
}

/** @param {View} view */
export function drawNote(view) {
  const holes = view.run.missing.length;
  const hole = holes ? view.say("rounds.holes", { n: holes }) : "";
  setText(view.ui.note, [view.run.note, hole].filter(Boolean).join(" "));
  view.ui.note.classList.toggle("hidden", !view.run.note && !hole);
}

/** Says of a run of another pair that it is one: its figures are not those of the pair in use. @param {View} view */
export function drawOther(view) {
  const { run, pair } = view;
  const other = Boolean(run.key && run.pair && pair && run.pair !== pair);
  setText(view.ui.other, other ? view.say(run.start.recorded ? "rounds.recorded_with" : "rounds.made_with", { pair: run.pair, now: pair }) : "");
  view.ui.other.classList.toggle("hidden", !other);
  view.ui.view.toggleAttribute("data-other", other);
}

/** @param {View} view @param {Round | null} round */
export function countDistance(view, round) {
  if (!round || !isLossy(round)) return;
  view.distance.sum += round.distance ?? 0;
  view.distance.rounds += 1;
}

/**
 * The rule's mark, with what it costs as measured so far: no reader should take a lossy text for the target's.
 *
 * @param {View} view
 */
export function drawLossy(view) {
  const { sum, rounds } = view.distance;
  const lossy = rounds > 0 || (Boolean(view.run.start.lossy) && !view.run.start.greedy && Boolean(view.run.start.drafter));
  const measured = rounds ? [view.say("rounds.lossy_measured", { distance: plainNumber(sum / rounds) })] : [];
  setText(view.ui.lossy, lossy ? [view.say("rounds.lossy_mark"), ...measured].join(" ") : "");
  view.ui.lossy.classList.toggle("hidden", !lossy);
}
