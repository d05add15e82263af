// Draws a chart's frame, for the width there is: its type keeps its size on a phone.

import { make, svg } from "./dom.js";
import { fixed } from "./numbers.js";

const HEIGHT = 280;

export const MARGIN = { left: 38, right: 14, top: 26, bottom: 40 };

/** @param {number} x @param {number} y @param {any} text @param {Record<string, any>} [attributes] */
export const caption = (x, y, text, attributes = {}) => svg("text", { x, y, ...attributes }, text);

/** @param {number[][]} points @param {Record<string, any>} attributes */
export const path = (points, attributes) => svg("path", { d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), ...attributes });

/** A distance between ticks that gives at most six up to `most`. @param {number} most */
function tickStep(most) {
  const size = 10 ** Math.floor(Math.log10(most / 6));
  return [1, 2, 5, 10].map((n) => n * size).find((step) => most / step <= 6);
}

/**
 * The frame of a chart: { node, x, y, right, bottom }, with ticks and names at both axes.
 *
 * @param {number} width @param {any} how
 */
export function frame(width, { name, x, y, ticks, most, xName, yName, tickText }) {
  const right = width - MARGIN.right;
  const bottom = HEIGHT - MARGIN.bottom;
  const place = { x: (value) => MARGIN.left + x(value) * (right - MARGIN.left), y: (value) => bottom - (y(value) * (bottom - MARGIN.top)) };
  const node = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": name });
  const step = tickStep(most) ?? most;
  for (let value = 0; value <= most * 1.0001; value += step) {
    node.append(path([[MARGIN.left, place.y(value)], [right, place.y(value)]], { class: "grid" }));
    node.append(caption(MARGIN.left - 6, place.y(value) + 4, tickText(value, step), { "text-anchor": "end" }));
  }
  for (const value of ticks) node.append(caption(place.x(value), bottom + 16, value, { "text-anchor": "middle" }));
  node.append(caption(right, HEIGHT - 5, xName, { "text-anchor": "end" }), caption(4, 11, yName));
  return { node, ...place, left: MARGIN.left, right, bottom };
}

/** @param {number} value @param {number} step */
export const tick = (value, step) => fixed(value, step < 1 ? 1 : 0);

/**
 * What is drawn in a box is drawn anew when its width changes.
 *
 * @param {string} name @param {(width: number) => Node} draw
 */
export function canvas(name, draw) {
  const box = make("div", { class: "chart", part: name });
  const redraw = () => box.clientWidth && box.replaceChildren(draw(box.clientWidth));
  new ResizeObserver(redraw).observe(box);
  return { box, redraw };
}

/** @param {string} kind @param {string} text */
export const key = (kind, text) => make("li", { class: kind }, text);
