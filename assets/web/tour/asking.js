// Has the page run something for the tour, and waits for the finished run.

import { liveRun } from "../shared/live.js";

/** @typedef {import("./element.js").SpecvizTour} Tour */
/** @typedef {import("./steps.js").Finished} Finished */

const PATIENCE = 30000; // ms until a run that was asked for must have begun
const GRACE = 2000; // ms for the last messages of a run that is over

/** The visitor went on meanwhile. */
export class Left extends Error {}

/** What waits for the page to change: `look` has all of it look again. */
export class Waits {
  /** @type {Set<() => void>} */
  #checks = new Set();

  look() {
    for (const check of this.#checks) check();
  }

  /**
   * Waits until test() gives anything but undefined, and for that; what it throws is thrown.
   *
   * @template T
   * @param {() => T | undefined} test
   * @returns {Promise<T>}
   */
  until(test) {
    return new Promise((resolve, reject) => {
      const check = () => {
        try {
          const found = test();
          if (found === undefined) return;
          resolve(found);
        } catch (error) {
          reject(error);
        }
        this.#checks.delete(check);
      };
      this.#checks.add(check);
      check();
    });
  }
}

/**
 * Runs these settings on the page; the finished run as the live view tells it. Throws `Left` when the showing is over
 * before that, and an Error with a sentence when nothing comes of it.
 *
 * @param {Tour} tour
 * @param {Record<string, any>} settings
 * @param {boolean} measure whether its speedup is measured, too
 * @param {object} showing
 * @returns {Promise<Finished>}
 */
export async function run(tour, settings, measure, showing) {
  const { page, say, waits } = tour;
  const goOn = () => {
    if (tour.showing !== showing) throw new Left();
  };
  await waits.until(() => (goOn(), page.idle() || undefined));
  const before = liveRun()?.finished?.run;
  const began = performance.now();
  let busy = false;
  /** @type {number | null} */
  let over = null;
  tour.refusal = null;
  tour.tell("specviz-press", { settings, press: "generate", measure });
  const timers = [setTimeout(() => tour.onPage(), PATIENCE + 50)];
  try {
    return await waits.until(() => {
      goOn();
      busy ||= !page.idle();
      const finished = /** @type {Finished | null} */ (liveRun()?.finished ?? null);
      if (finished && finished.run !== before && page.idle() && !liveRun()?.busy) return whole(tour, finished);
      if (busy && page.idle()) {
        if (over === null) timers.push(setTimeout(() => tour.onPage(), GRACE + 50));
        over ??= performance.now();
        const told = !liveRun()?.busy && ["error", "finished"].includes(liveRun()?.state ?? "");
        if (told || performance.now() - over > GRACE) throw new Error(liveRun()?.note || say("tour.ended_early"));
      }
      if (!busy && tour.refusal !== null) throw new Error(tour.refusal);
      if (!busy && performance.now() - began > PATIENCE) throw new Error(say("tour.nothing_started"));
      return undefined;
    });
  } finally {
    timers.forEach(clearTimeout);
  }
}

/** @param {Tour} tour @param {Finished} finished */
function whole(tour, finished) {
  if (finished.rounds.at(-1)?.stop_reason === undefined) throw new Error(tour.say("tour.stopped"));
  return finished;
}
