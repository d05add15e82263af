// Draws p and q where a token was judged or drawn.

import { make } from "../../shared/dom.js";
import { brief, briefly, plainNumber } from "../../shared/numbers.js";
import { quoted, showToken } from "../../shared/tokens.js";
import { blockWeights, isBlock, isCopy, isJudged, isLossy, isRefusal, rowOf, tokenAt, tokenText } from "../record/records.js";
import { unbroken } from "../record/sentences.js";
import { tempered } from "./tempered.js";
import { isTree, parentOf, siblings } from "../record/trees.js";

/** @typedef {import("../types.js").Bar} Bar */
/** @typedef {import("./tempered.js").Range} Range */
/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */
/** @typedef {import("../types.js").NextToken} NextToken */

const SHOWN = 6;

/**
 * p and q of the likeliest tokens, side by side; `refused`: with what p has over q, once the token was; `drawn`: whether
 * the round's next token is known, and may stand out.
 *
 * @param {Run} run @param {Round} round @param {Index} index @param {boolean} refused @param {boolean} drawn
 * @param {number} [most] tokens that are shown @param {number} [power] of another temperature (tempered.js)
 */
export function distribution(run, round, index, refused, drawn, most = SHOWN, power = 1) {
  const token = tokenAt(round, index);
  const own = index !== "next" || drawn ? token.id : null;
  const { weight, ...known } = distributions(run, round, index);
  const [p, q] = [tempered(known.p, power), tempered(known.q, power)];
  // Where the residual is drawn from, by what p has over q: the likeliest may have nothing left.
  const over = (/** @type {number} */ id) => (refused && index === "next" ? Math.max(0, (weight ?? 1) * of(p, id)[0] - of(q, id)[1]) : 0);
  const ids = [...new Set([...p.keys(), ...q.keys()])].sort((a, b) => over(b) - over(a) || of(p, b)[0] - of(p, a)[0]);
  const shown = ids.slice(0, most);
  if (own !== null && !shown.includes(own) && (p.has(own) || q.has(own))) shown[Math.max(0, Math.min(most, shown.length) - 1)] = own;
  if (!shown.length) return [];
  /** @type {Bar[]} */
  const rows = shown.map((id) => ({ name: nameOf(run, id, id === own), p: of(p, id), q: of(q, id), text: quoted(run.say, tokenText(run, id)) }));
  rows.push({ name: restName(run), p: restOf(p, shown), q: restOf(q, shown), text: run.say("rounds.others"), rest: true });
  const both = q.size > 0;
  const left = both && refused;
  const scale = Math.max(...rows.flatMap((row) => (row.rest ? [0.01] : [row.p[1], row.q[1]])));
  const label = rows.map((row) => `${row.text}: p ${briefly(row.p)}${both ? `, q ${briefly(row.q)}` : ""}`).join("; ");
  const bars = make("div", { class: `bars ${left ? "three" : both ? "two" : "one"}`, role: "img", part: "distribution", "aria-label": label });
  bars.append(make("span"), make("span"), make("span", { class: "h p", text: "p" }));
  if (both) bars.append(make("span", { class: "h q", text: "q" }));
  if (left) bars.append(make("span", { class: "h left", text: weight === null ? "p − q" : "w·p − q" }));
  for (const row of rows) barRow(bars, row, { both, left, scale, weight: weight ?? 1 });
  const greedy = Boolean(run.start.greedy);
  const heading = greedy && power === 1 ? "rounds.heading_raw" : both ? "rounds.heading_both" : "rounds.heading_target";
  return [make("h4", { text: run.say(heading) }), bars, barsLegend(run, token, { both, left, weight }), ...(power === 1 ? rawLine(run, token, index, greedy) : [])];
}

/**
 * The residual's likeliest tokens and, once it is drawn, the next one, for the overview; nothing where the record lists none.
 *
 * @param {Run} run @param {Round} round @param {boolean} drawn @param {number} most
 */
export function residualBars(run, round, drawn, most) {
  const pairs = (isRefusal(run, round, "next") && rowOf(round, "next").residual || []).filter(([, share]) => share > 0.0005).slice(0, most);
  const { id: next, prob } = round.next;
  if (drawn && next !== null && pairs.length && !pairs.some(([id]) => id === next)) pairs.splice(most - 1, 1, [next, prob ?? 0]);
  const label = pairs.map(([id, share]) => `${quoted(run.say, tokenText(run, id))}: ${brief(share)}`).join("; ");
  const rows = pairs.flatMap(([id, share]) => {
    const stripe = make("i", { class: "left" });
    stripe.style.width = `${(100 * share) / pairs[0][1]}%`;
    return [nameOf(run, id, drawn && id === round.next.id), make("span", { class: "bar" }, stripe)];
  });
  return pairs.length ? [make("div", { class: "bars one", role: "img", "aria-label": label }, ...rows)] : [];
}

/** @param {Map<number, Range>} shares @param {number} id @returns {Range} */
const of = (shares, id) => shares.get(id) ?? [0, 0];

/** What the shown tokens leave of 1. @param {Map<number, Range>} shares @param {number[]} shown @returns {Range} */
const restOf = (shares, shown) => /** @type {Range} */ ([1, 0].map((end) => Math.max(0, 1 - shown.reduce((sum, id) => sum + of(shares, id)[end], 0))));

/**
 * The target's and the drafter's distribution where a token was judged or drawn, as Maps from ids; q is empty where the record
 * holds none for this token. weight: what block verification multiplies p by; null under other rules.
 *
 * @param {Run} run @param {Round} round @param {Index} index
 */
export function distributions(run, round, index) {
  const row = rowOf(round, index);
  const token = index === "next" ? null : round.drafted[index];
  // A greedy p is 0 or 1 and says nothing; the models' own probabilities do.
  const greedy = Boolean(run.start.greedy);
  const p = new Map(greedy && row.p_raw?.length ? row.p_raw : row.p);
  const q = new Map(greedy ? (row.q_raw ?? []) : (row.q ?? []));
  if (token && token.id !== null && !greedy && token.outcome !== "discarded") {
    if (token.p !== null) p.set(token.id, token.p);
    if (token.q !== null) q.set(token.id, token.q);
  }
  // Drawn siblings come from different distributions, and the row lists that of the first; chosen ones come from none.
  const { kin, order } = siblings(round, index);
  // Of several paths the row lists what the picked one was drawn from.
  const listed = isBlock(run) ? !token || isJudged(token) : order === 1 && token?.q !== 1;
  if (!greedy && isTree(round) && kin.length !== 1 && !listed) q.clear();
  if ((!greedy && isLossy(round)) || (index === "next" && round.next.kind === "bonus")) q.clear(); // nothing was drafted there
  return { p, q, weight: isBlock(run) ? (blockWeights(round)[parentOf(round, index)] ?? 1) : null };
}

/** @param {Run} run @param {number} id @param {boolean} chosen */
export const nameOf = (run, id, chosen) => showToken(run.say, make("span", { class: chosen ? "name on" : "name" }), tokenText(run, id));

/** @param {Run} run */
export const restName = (run) => make("span", { class: "name rest", text: run.say("rounds.others") });

/**
 * One token's p above its q; what of p lies beyond q is hatched.
 *
 * @param {HTMLElement} bars @param {Bar} row
 * @param {{ both: boolean, left: boolean, scale: number, weight: number }} how
 */
function barRow(bars, row, { both, left, scale, weight }) {
  const bar = make("span", { class: row.rest ? "bar rest" : "bar" });
  const stripe = (kind, from, to) => {
    if (to <= from) return;
    // The rest may be far longer than any token's bar: then it is drawn broken off.
    const node = make("i", { class: to > scale ? `${kind} broken` : kind });
    node.style.left = `${(100 * Math.min(from, scale)) / scale}%`;
    node.style.width = `${(100 * (Math.min(to, scale) - Math.min(from, scale))) / scale}%`;
    bar.append(node);
  };
  const stripes = (kind, [least, most]) => {
    stripe(kind, 0, least);
    stripe(`${kind} maybe`, least, most);
  };
  stripes(both ? "p" : "p wide", row.p);
  if (both) stripes("q", row.q);
  // The rest is many tokens, and some of them may lie above q where others lie below.
  const over = left && !row.rest;
  if (over) stripe("left", row.q[1], weight * row.p[0]);
  bars.append(row.name, bar, make("span", { class: "v p", text: briefly(row.p) }));
  if (both) bars.append(make("span", { class: "v q", text: briefly(row.q) }));
  const excess = [weight * row.p[0] - row.q[1], weight * row.p[1] - row.q[0]].map((x) => Math.max(0, x));
  if (left) bars.append(make("span", { class: "v left", text: over ? briefly(/** @type {Range} */ (excess)) : "" }));
}

/** Whose p is, and q of a token that was drafted. @param {Run} run @param {any} token */
export function pairLegend(run, token) {
  const entry = (/** @type {string} */ kind, /** @type {string} */ sign, /** @type {string} */ name) =>
    make("span", {}, make("b", { class: kind, text: sign }), ` ${run.say(`rounds.legend_${name}`)}`);
  return make("span", { class: "legend", part: "pair-legend" }, entry("target", "p", "target"), ...(token ? [entry("draft", "q", isCopy(run, token) ? "copy" : "draft")] : []));
}

/**
 * @param {Run} run @param {any} token
 * @param {{ both: boolean, left: boolean, weight: number | null }} how
 */
function barsLegend(run, token, { both, left, weight }) {
  const legend = pairLegend(run, both ? token : null);
  if (!left) return legend;
  const text = weight === null ? run.say("rounds.legend_left") : run.say("rounds.legend_left_block", { w: plainNumber(weight) });
  legend.append(make("span", {}, make("i", { class: "patch" }), ` ${text}`));
  return legend;
}

/**
 * The models' own softmax, where temperature or filters changed it.
 *
 * @param {Run} run @param {any} token @param {Index} index @param {boolean} greedy
 */
function rawLine(run, token, index, greedy) {
  if (index === "next") return [];
  const changed = token.p_raw !== null && (Math.abs(token.p_raw - token.p) > 0.005 || (token.q_raw !== null && Math.abs(token.q_raw - token.q) > 0.005));
  if (!changed) return [];
  const key = `rounds.raw_${greedy ? "greedy_" : ""}${token.q_raw === null ? "target" : "both"}`;
  const values = { token: quoted(run.say, token.text), p: plainNumber(token.p_raw), q: token.q_raw === null ? "" : plainNumber(token.q_raw) };
  return [make("p", { class: "raw", text: unbroken(run.say(key, values)) })];
}
