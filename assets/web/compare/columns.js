// The columns of the Compare tab's table: what each sorts by, and what it says of a row.

import { DASH, decimals, percent, rate, times } from "./figures.js";

/**
 * key: of its heading's text; `words`: sorted as words; `hint`: its heading explains itself; value: to sort by, null
 * where it is not known yet; text: what the cell says.
 *
 * @typedef {{ key: string, words?: boolean, hint?: boolean, value(row: any): any,
 *   text(row: any, say: import("../shared/words.js").Say): string }} Column
 */

const figure = (name) => (row) => row.figures?.[name] ?? null;

/** "auto" after all numbers. @param {number | "auto" | null} gamma */
export const byLength = (gamma) => (gamma === "auto" ? 1000 : gamma);

/** @type {Column[]} */
export const COLUMNS = [
  { key: "speedup", hint: true, value: figure("speedup_measured"), text: (row) => times(figure("speedup_measured")(row)) },
  { key: "drafter", value: (row) => row.drafter, text: (row) => row.drafter, words: true },
  { key: "num_draft_tokens", value: (row) => byLength(row.num_draft_tokens), text: (row) => String(row.num_draft_tokens ?? DASH) },
  { key: "branches", value: (row) => row.branches, text: (row) => String(row.branches ?? DASH) },
  { key: "acceptance_rate", hint: true, value: figure("acceptance_rate"), text: (row) => percent(figure("acceptance_rate")(row)) },
  { key: "acceptance_length", hint: true, value: figure("acceptance_length"), text: (row) => decimals(2)(figure("acceptance_length")(row)) },
  { key: "cost_coefficient", hint: true, value: figure("cost_coefficient"), text: (row) => decimals(2)(figure("cost_coefficient")(row)) },
  { key: "tokens_per_second", hint: true, value: figure("tokens_per_second"), text: (row) => rate(figure("tokens_per_second")(row)) },
  { key: "lossless", hint: true, value: (row) => (row.lossless ? 0 : row.lossless === null ? null : row.figures?.distance ?? 1),
    text: (row, say) => (row.lossless === null ? DASH : say(row.lossless ? "compare.lossless" : "compare.lossy")) },
];

/** The columns of a row that is left out: its speedup, which is not known, and which run it is about. */
export const NAMING = ["speedup", "drafter", "num_draft_tokens", "branches"];

/** By what the table is ranked. */
export const RANKING = /** @type {Column} */ (COLUMNS.find(({ key }) => key === "speedup"));
