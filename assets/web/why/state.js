// What the lab holds, and what can be told from it.

import { GAMMAS, passRatio } from "../shared/formulas.js";

/**
 * What the parts of the lab share.
 *
 * @typedef {{ host: import("../shared/element.js").SpecvizElement, say: import("../shared/words.js").Say,
 *   state: ReturnType<typeof emptyState>, ui: any, awaited: boolean, reckon: () => void }} Lab
 */

/** Of an H100 SXM (NVIDIA's data sheet) and Llama-3.1-8B in bfloat16, its draft a twentieth of that. */
const GPU = { bandwidth: 3350, peak: 989, parameters: 8, bytes: 2, rows: 131, context: 256, cost: 0.05 };

/** Of a measurement that nobody has asked for yet. */
const NOTHING = { phase: "empty", problem: "" };

/** Before any message. @returns {Record<string, any>} */
export const emptyState = () => ({ story: null, runs: [], source: "own", touched: false, alpha: 0.7, cost: 0.2, gamma: 4, place: "gpu", gpu: { ...GPU },
  passes: null, batches: null, forced: [], measuring: { passes: NOTHING, batches: NOTHING, forced: NOTHING } });

/** @param {Lab} lab */
export const lastRun = (lab) => lab.state.runs.at(-1) ?? null;

/** @param {Lab} lab @param {string} role */
export const curveOf = (lab, role) => lab.state.passes?.curves.find((curve) => curve.role === role && curve.points.length) ?? null;

/** Whether verification was measured far enough to stand in the place of the formula's 1. @param {Lab} lab */
export function hasVerification(lab) {
  return passRatio(curveOf(lab, "target"), GAMMAS.length) !== null;
}

/** T(γ+1)/T(1), where it was measured. @param {Lab} lab @param {number} gamma @returns {any} */
export const verification = (lab, gamma) => passRatio(curveOf(lab, "target"), gamma + 1);
