// The page's charts as far as the reader's place, from those of the whole run (specviz/views/charts.py). Times stay the whole
// run's, as in the headline figures.

import { depthOf } from "./record/trees.js";

/** @param {Record<string, any>} whole by their place @param {(import("./types.js").Round | null)[]} rounds those that are over */
export function chartsAfter(whole, rounds) {
  const [{ rounds: numbers = [], rates = [], parts = [] } = {}, { step = 1 } = {}] = [whole[0], whole[1]];
  const points = numbers.filter((/** @type {number} */ number) => number <= rounds.length).length;
  const lengths = rounds.map((round) => round?.emitted.length ?? 0);
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, each) => sum + each, 0) / values.length;
  const means = lengths.flatMap((_, i) => (i % step ? [] : [mean(lengths.slice(i, i + step))]));
  const [accepted, judged] = [/** @type {number[]} */ ([]), /** @type {number[]} */ ([])];
  for (const round of rounds) round?.drafted.forEach(({ outcome }, index) => {
    const place = depthOf(round, index) - 1;
    judged[place] = (judged[place] ?? 0) + Number(outcome !== "discarded");
    accepted[place] = (accepted[place] ?? 0) + Number(outcome === "accepted");
  });
  // Of an engine that does not say how many it drafted, nobody knows it here either; and a live run's may not have come yet.
  const byPosition = whole[2]?.judged.length ? { ...whole[2], accepted, judged } : whole[2];
  return { ...whole, 0: { rounds: numbers.slice(0, points), rates: rates.slice(0, points),
    parts: parts.filter((/** @type {number[]} */ [last]) => last <= rounds.length) },
    1: { rounds: rounds.length, step, means, mean: lengths.length ? mean(lengths) : null }, ...(byPosition && { 2: byPosition }) };
}
