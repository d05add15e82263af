// The page's charts as far as the reader's place, from what they show of the whole run (specviz/views/charts.py).

import { acceptedIndexes } from "./record/records.js";
import { depthOf } from "./record/trees.js";

/** @typedef {import("./types.js").Round} Round */

/**
 * Times are of the whole run, as in the headline figures: a clock was read once, at the run's own pace.
 *
 * @param {Record<string, any>} whole the charts' values by their place @param {(Round | null)[]} rounds those that are over
 */
export function chartsAfter(whole, rounds) {
  const [rates, lengths] = [whole[0] ?? { rounds: [], rates: [] }, whole[1] ?? { step: 1 }];
  const points = rates.rounds.filter((/** @type {number} */ number) => number <= rounds.length).length;
  const emitted = rounds.map((round) => round?.emitted.length ?? 0);
  const groups = Array.from({ length: Math.ceil(emitted.length / lengths.step) }, (_, i) => emitted.slice(i * lengths.step, (i + 1) * lengths.step));
  const [accepted, judged] = [/** @type {number[]} */ ([]), /** @type {number[]} */ ([])];
  for (const round of rounds.filter((one) => one !== null)) {
    const kept = new Set(acceptedIndexes(round));
    round.drafted.forEach(({ outcome }, index) => {
      const place = depthOf(round, index) - 1;
      judged[place] = (judged[place] ?? 0) + Number(outcome !== "discarded");
      accepted[place] = (accepted[place] ?? 0) + Number(kept.has(index));
    });
  }
  return {
    ...whole,
    0: { rounds: rates.rounds.slice(0, points), rates: rates.rates.slice(0, points) },
    1: { ...lengths, rounds: emitted.length, means: groups.map(mean), mean: emitted.length ? mean(emitted) : null },
    2: { ...whole[2], accepted, judged },
  };
}

/** @param {number[]} values */
const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
