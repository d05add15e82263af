// Draws a coin on the line from 0 to 1.

import { make } from "../../shared/dom.js";
import { brief, compared } from "../../shared/numbers.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").FlippedToken} FlippedToken */

/**
 * The line from 0 to 1: below accept_prob, the token's own threshold, the coin passes. Of a token that is only supposed, the
 * threshold may lie in a range, and between its ends nobody knows.
 *
 * @param {Run} run @param {FlippedToken} token
 */
export function coinLine(run, token) {
  const [least, most] = token.bound ?? [token.accept_prob, token.accept_prob];
  const [u, threshold] = compared(token.u, least);
  const zones = [...zone(run, "pass", 0, least, token.u), ...zone(run, "maybe", least, most, token.u), ...zone(run, "fail", most, 1, token.u)];
  const bar = make("div", { class: "track" }, ...zones, tickAt(token.u),
    marker(least, threshold, "below"), ...(most - least > 0.2 ? [marker(most, brief(most), "below")] : []), marker(token.u, `u = ${u}`, "above"));
  return make("div", { class: `line ${token.outcome}`, role: "img", part: "coin", "aria-label": run.say("rounds.coin_picture", { u, threshold }) },
    make("span", { class: "end", text: "0" }), bar, make("span", { class: "end", text: "1" }));
}

/**
 * A stretch of the line, with its name where it has room for one beside the coin.
 *
 * @param {Run} run @param {string} kind @param {number} start @param {number} end @param {number} u
 */
function zone(run, kind, start, end, u) {
  const sign = { pass: "✓", fail: "✗" }[kind] ?? "?";
  const inside = u >= start && u < end;
  const room = inside ? Math.max(u - start, end - u) : end - start;
  const text = room > 0.34 && kind !== "maybe" ? `${sign} ${run.say(`rounds.${kind}`)}` : room > 0.1 ? sign : "";
  const node = make("div", { class: kind }, make("span", { text }));
  node.style.width = `${100 * (end - start)}%`;
  if (inside) node.style.padding = u - start > end - u ? `0 ${(100 * (end - u))}% 0 0` : `0 0 0 ${100 * (u - start)}%`;
  return end > start ? [node] : [];
}

/** @param {number} u */
export function tickAt(u) {
  const tick = make("div", { class: "u" });
  tick.style.left = `${100 * u}%`;
  return tick;
}

/** @param {number} at @param {string} text @param {string} side */
export function marker(at, text, side) {
  const node = make("span", { class: `mark ${side}`, text });
  node.style.left = `${100 * at}%`;
  // Slides from left-aligned at 0 to right-aligned at 1, so it never leaves the line.
  node.style.transform = `translateX(${-100 * at}%)`;
  return node;
}
