// How much a measured speedup says: the one judge of its interval, for every element that shows a speedup.

import { fixed } from "./numbers.js";

/** Ends of an interval further apart than this factor leave no figure; between its inverse and `ALIKE` nobody is faster. */
const WIDE = 1.5;
const ALIKE = 1.1;

/**
 * A speedup with its 90 % interval, whose ends are missing in files of earlier versions.
 *
 * @param {import("./words.js").Say} say
 * @param {number | null | undefined} speedup
 * @param {number | null | undefined} low
 * @param {number | null | undefined} high
 * @returns {{ decided: boolean, open: string, text: string }} decided: the figure may stand by itself, and names the faster
 *   one; open: what the interval leaves open; text: that figure, or a sentence that says what is known instead
 */
export function speedupVerdict(say, speedup, low, high) {
  const open = typeof low === "number" && typeof high === "number" ? openWord(low, high) : "";
  if (open) return { decided: false, open, text: say(`common.speedup_${open}`, { low, high }) };
  const known = typeof speedup === "number";
  return { decided: known, open, text: known ? `${fixed(speedup, 2)}×` : "—" };
}

/** What an interval leaves open; nothing where it is narrow and all on one side of 1. @param {number} low @param {number} high */
function openWord(low, high) {
  if (low <= 1 && high >= 1) return low * ALIKE > 1 && high < ALIKE ? "alike" : "undecided";
  if (high <= WIDE * low) return "";
  return low > 1 ? "faster" : "slower";
}
