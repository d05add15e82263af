// A close-up's tables: a block's weights, and the candidates for one place.

import { make } from "../../shared/dom.js";
import { brief, compared } from "../../shared/numbers.js";
import { SYMBOL, showToken } from "../../shared/tokens.js";
import { blockWeights, hasCoin, isBlock, isJudged, isLossy } from "../record/records.js";
import { isTree, siblings } from "../record/trees.js";

/** @typedef {import("../types.js").Column} Column */
/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */

/**
 * A table of draft tokens: `columns` are [heading, text of a token's cell]; the verdict closes each row.
 *
 * @param {Run} run @param {Round} round @param {number[]} nodes @param {Index} chosen @param {Column[]} columns
 * @param {string} part
 */
function tokenTable(run, round, nodes, chosen, columns, part) {
  const heads = columns.map(([name]) => make("th", { scope: "col", text: name }));
  const head = make("tr", {}, make("th", { scope: "col", text: run.say("rounds.token") }), ...heads, make("th", { scope: "col", "aria-label": run.say("rounds.verdict") }));
  const rows = nodes.map((node) => {
    const token = round.drafted[node];
    return make("tr", { class: node === chosen ? `${token.outcome} on` : token.outcome },
      showToken(run.say, make("th", { scope: "row" }), token.text), ...columns.map(([, cell]) => make("td", { text: cell(token, node) })),
      make("td", { class: "sign", text: SYMBOL[token.outcome], "aria-label": run.say(`rounds.${token.outcome}`) }));
  });
  return make("table", { class: "tokens", part }, make("thead", {}, head), make("tbody", {}, ...rows));
}

/**
 * A number of a table: .31; with more digits where it takes them to tell it from the one it was compared with.
 *
 * @param {string} text
 */
const cell = (text) => text.replace(/^0(?=[.,])/, "");

/** @param {DraftedToken} token */
const comparedCells = (token) => (hasCoin(token) ? compared(token.u, token.accept_prob).map(cell) : [brief(token.u), "–"]);

/**
 * Block verification: weight, what is left, h and coin of every position.
 *
 * @param {Run} run @param {Round} round @param {Index} index
 */
export function blockTable(run, round, index) {
  if (!isBlock(run) || !round.drafted.some(isJudged)) return [];
  const weights = blockWeights(round);
  const judged = [...round.drafted.keys()].filter((node) => isJudged(round.drafted[node]));
  // h = Z / (Z + 1 − w) solved for Z; where h is 1 it says nothing of Z, and near 1 too little.
  const left = (/** @type {number} */ h, /** @type {number} */ node) => (node === judged.at(-1) || h > 0.9999 ? null : (h * (1 - weights[node])) / (1 - h));
  /** @type {Column[]} */
  const columns = [["w", (_, node) => brief(weights[node])], ["Z", (token, node) => brief(left(token.accept_prob ?? 0, node))],
    ["h", (token) => comparedCells(token)[1]], ["u", (token) => comparedCells(token)[0]]];
  return [make("h4", { text: run.say("rounds.block_table") }), tokenTable(run, round, judged, index, columns, "block"),
    make("p", { class: "raw", text: run.say("rounds.block_legend") })];
}

/**
 * The candidates for one place, in the order tried, each with what those before it left of the target.
 *
 * @param {Run} run @param {Round} round @param {Index} index
 */
export function siblingTable(run, round, index) {
  if (!isTree(round)) return [];
  const { kin } = siblings(round, index);
  if (kin.length < 2) return [];
  const inTurn = !run.start.greedy && !isLossy(round) && !isBlock(run);
  const parts = [make("h4", { text: run.say(inTurn ? "rounds.candidates_in_turn" : "rounds.candidates") }),
    tokenTable(run, round, kin, index, siblingColumns(run, inTurn), "siblings")];
  if (inTurn) parts.push(make("p", { class: "raw", text: run.say("rounds.candidates_legend") }));
  return parts;
}

/** @param {Run} run @param {boolean} inTurn @returns {Column[]} */
function siblingColumns(run, inTurn) {
  /** @type {Column} */
  const p = ["p", (token) => brief(run.start.greedy ? token.p_raw : token.p)];
  if (!inTurn) return [p];
  /** @type {Column} */
  const left = ["p′", (token) => brief(token.p_left ?? (isJudged(token) ? token.p : null))];
  /** @type {Column} */
  const q = ["q", (token) => brief(token.q)];
  return [p, left, q, ["u <", (token) => comparedCells(token)[1]], ["u", (token) => comparedCells(token)[0]]];
}
