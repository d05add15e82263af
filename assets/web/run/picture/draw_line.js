// Draws the line from 0 to 1 that the target's own token was drawn on.

import { make } from "../../shared/dom.js";
import { brief, fixed, plainNumber } from "../../shared/numbers.js";
import { quoted } from "../../shared/tokens.js";
import { marker, tickAt } from "./coin.js";
import { distributions, nameOf, restName } from "./distribution.js";
import { isLossy, isPlaced, isRefusal, nextKind, rowOf, tokenText } from "../record/records.js";
import { placeOfDraw } from "../record/sentences.js";
import { refusedHere } from "../record/trees.js";

/** @typedef {import("../types.js").Stretch} Stretch */
/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").NextToken} NextToken */

/**
 * After a refusal: the residual as pieces of the line from 0 to 1 and, once it is drawn, the draw that fell on it.
 *
 * @param {Run} run @param {Round} round @param {Index} index @param {boolean} drawn
 */
export function residual(run, round, index, drawn) {
  if (!isRefusal(run, round, index)) return [];
  const pairs = rowOf(round, "next").residual ?? [];
  // Only the last of several refused siblings leaves what was drawn from.
  const refused = index === "next" ? refusedHere(round) : [round.drafted[index]];
  if (!pairs.length || refused.at(-1) !== refusedHere(round).at(-1)) return [];
  const total = refusedHere(round).length === 1 ? leftInAll(run, round) : null;
  const heading = total !== null ? run.say("rounds.residual_total", { total: plainNumber(total) })
    : run.say(refusedHere(round).length === 1 ? "rounds.residual" : "rounds.residual_many");
  return [make("h4", { text: heading }), ...pieces(run, round, pairs, "residual", drawn)];
}

/**
 * What p has over q, summed over the vocabulary: a listed token's share of it, divided by its share of the residual.
 *
 * @param {Run} run @param {Round} round
 */
function leftInAll(run, round) {
  const { p, q, weight } = distributions(run, round, "next");
  const shares = (rowOf(round, "next").residual ?? []).map(([id, share]) => [(weight ?? 1) * (p.get(id) ?? 0) - (q.get(id) ?? 0), share]);
  const [over, share] = shares.reduce((most, one) => (one[0] > most[0] ? one : most), [0, 1]);
  return over > 0 ? over / share : null;
}

/**
 * The draw of a token that nothing was refused for: from the target's own distribution.
 *
 * @param {Run} run @param {Round} round
 */
export function drawLine(run, round) {
  if (!isPlaced(round.next)) return [];
  return [make("h4", { text: run.say("rounds.line_own") }), ...pieces(run, round, [], "draw")];
}

/**
 * The line from 0 to 1, cut into one piece a token in the order of the draw, with u on it; below, its listed pieces one
 * by one. `pairs`: [id, share], all that an older trace tells of them: then they have no places, and there is no line.
 * Before it is drawn, there is no u, and no piece stands out.
 *
 * @param {Run} run @param {Round} round @param {[number, number][]} pairs @param {string} part @param {boolean} [drawn]
 */
function pieces(run, round, pairs, part, drawn = true) {
  const { next } = round;
  const isNext = (/** @type {number} */ id) => drawn && id === next.id;
  const kind = isLossy(round) ? "bonus" : nextKind(round);
  const at = isPlaced(next) ? placeOfDraw(next) : null;
  /** @type {[number, number, number][]} */
  const whole = (at && next.line) || pairs.map(([id, share]) => [id, 0, share]);
  // The line lists the likeliest and the drawn token: which one came in by the draw alone is not known before it.
  const listed = drawn ? whole : whole.filter(([id]) => pairs.some(([likely]) => likely === id));
  const picture = at && drawn ? run.say("rounds.line_picture", { token: quoted(run.say, next.text), ...at })
    : listed.map(([id, start, end]) => `${quoted(run.say, tokenText(run, id))}: ${brief(end - start)}`).join("; ");
  const box = make("div", { class: `pieces ${kind}`, role: "img", part, "aria-label": picture });
  if (at) box.append(make("span"), wholeLine(next, listed, drawn), make("span"));
  const row = (/** @type {Node} */ name, /** @type {number} */ value, /** @type {Stretch[]} */ spans) =>
    box.append(name, track(spans, drawn ? at && next : null), make("span", { class: "v", text: brief(value) }));
  for (const [id, start, end] of listed) row(nameOf(run, id, isNext(id)), end - start, [[start, end, isNext(id)]]);
  const gaps = at ? gapsBetween(listed) : [];
  const rest = at ? gaps.reduce((sum, [start, end]) => sum + end - start, 0) : 1 - listed.reduce((sum, [, , share]) => sum + share, 0);
  if (rest > 0.0005) row(restName(run), rest, at ? gaps : [[0, rest]]);
  return [box, ...(at && drawn ? [make("p", { class: "raw", text: run.say("rounds.line_legend") })] : [])];
}

/** The line as a whole, and u on it once it is drawn. @param {NextToken} next @param {[number, number, number][]} listed @param {boolean} drawn */
function wholeLine(next, listed, drawn) {
  const line = track(listed.map(([id, start, end]) => [start, end, drawn && id === next.id]), drawn ? next : null);
  line.classList.add("whole");
  if (drawn) line.append(marker(next.u ?? 0, `u = ${isPlaced(next) ? placeOfDraw(next).u : fixed(next.u ?? 0, 3)}`, "above"));
  return line;
}

/** The line alone, for the overview. @param {Round} round @param {boolean} drawn */
export function drawnLine(round, drawn) {
  const { next } = round;
  if (next.u === null || !next.line?.length) return [];
  const likely = (rowOf(round, "next").residual ?? []).map(([id]) => id);
  const listed = drawn ? next.line : next.line.filter(([id]) => likely.includes(id));
  return [make("span", { class: `pieces ${isLossy(round) ? "bonus" : nextKind(round)}` }, wholeLine(next, listed, drawn))];
}

/**
 * A stretch from 0 to 1 with these [start, end, drawn] pieces on it, and u where there is a draw.
 *
 * @param {Stretch[]} spans @param {NextToken | null} draw
 */
function track(spans, draw) {
  const node = make("span", { class: "track" });
  for (const [start, end, drawn] of spans) {
    const piece = make("i", { class: drawn ? "drawn" : null });
    piece.style.left = `${100 * start}%`;
    piece.style.width = `${100 * (end - start)}%`;
    node.append(piece);
  }
  if (draw) node.append(tickAt(draw.u ?? 0));
  return node;
}

/** What of the line no listed piece covers. @param {[number, number, number][]} listed @returns {Stretch[]} */
function gapsBetween(listed) {
  const edges = [0, ...listed.flatMap(([, start, end]) => [start, end]), 1];
  /** @type {Stretch[]} */
  const gaps = [];
  for (let i = 0; i < edges.length; i += 2) if (edges[i + 1] > edges[i]) gaps.push([edges[i], edges[i + 1]]);
  return gaps;
}
