// How the lab writes its figures.

import { fixed, written } from "../shared/numbers.js";

/** @typedef {import("./state.js").Lab} Lab */

/** @param {number} x */
export const times = (x) => `${fixed(x, 2)}×`;

/** @param {number} x */
export const two = (x) => fixed(x, 2);

/** @param {number} x */
export const percent = (x) => `${Math.round(100 * x)}\u202f%`;

/** @param {number} x */
export const three = (x) => written(String(x >= 100 ? Math.round(x) : Number(x.toPrecision(3))));

/** @param {number} seconds */
export const ms = (seconds) => fixed(1000 * seconds, seconds < 0.1 ? 2 : 0);

/** @param {Lab} lab @param {number} x */
const temperature = (lab, x) => (x === 0 ? lab.say("why.greedy") : lab.say("why.temperature", { value: Number(x.toFixed(2)) }));

/** @param {Lab} lab @param {any} run */
export const runName = (lab, run) => `${run.drafter}, γ = ${run.figures.num_draft_tokens}, ${temperature(lab, run.temperature)}`;
