// Draws charts as SVG in pages of their own and in notebooks, where plotly.js would be larger than all the rest. It takes
// the same figures (charts/figures.js), and knows of plotly's language what they say in it.

import { svg } from "./dom.js";
import { formatted, written } from "./numbers.js";

/** @typedef {{ at(value: any): number, ticks: any[] }} Axis where its values lie, px; and which of them it names */
/** @typedef {{ left: number, right: number, top: number, bottom: number }} Box px */

const BAR = 0.8; // of the distance between two bars, as plotly has it
const REACH = 6; // px around a point of a line within which it tells its value

/**
 * Draws a figure as wide as its frame is, whenever that changes.
 *
 * @param {HTMLElement} frame @param {any[]} data @param {any} layout
 */
export function react(frame, data, layout) {
  new ResizeObserver(() => frame.clientWidth && frame.replaceChildren(figure(frame.clientWidth, data, layout))).observe(frame);
}

/** @param {number} width @param {any[]} data @param {any} layout */
function figure(width, data, layout) {
  const { margin, height } = layout;
  const box = { left: margin.l, right: width - margin.r, top: margin.t, bottom: height - margin.b };
  const x = axis(layout.xaxis, data.flatMap((trace) => reach(trace, "x")), box.left, box.right);
  const y = axis(layout.yaxis, data.flatMap((trace) => reach(trace, "y")), box.bottom, box.top);
  return svg("svg", { class: "plot", width, height, role: "img", "aria-label": layout.title.text },
    text(layout.title.text, width * layout.title.x, 20, { class: "title" }),
    ...frameOf(layout, box, x, y), ...data.map((trace) => (trace.type === "bar" ? bars(trace, x, y) : line(trace, x, y))));
}

/** The values that a trace needs room for. @param {any} trace @param {"x" | "y"} name @returns {any[]} */
function reach(trace, name) {
  const values = trace[name].filter((/** @type {any} */ value) => value !== null);
  if (trace.type !== "bar" || name === "y" || trace.orientation === "h") return values;
  return values.flatMap((/** @type {number} */ value, /** @type {number} */ i) => [value - (trace.width?.[i] ?? BAR) / 2, value + (trace.width?.[i] ?? BAR) / 2]);
}

/**
 * @param {any} layout @param {any[]} values @param {number} from px of its lower end @param {number} to px of its upper end
 * @returns {Axis}
 */
function axis(layout, values, from, to) {
  if (typeof values[0] === "string") {
    // Of the charts, the one with names lists them from top to bottom.
    const at = (/** @type {string} */ name) => to + ((from - to) * (values.indexOf(name) + 0.5)) / values.length;
    return { at, ticks: values };
  }
  const [low, high] = layout.range ?? (values.length > 1 ? [Math.min(...values), Math.max(...values)] : [(values[0] ?? 1) - 0.5, (values[0] ?? 1) + 0.5]);
  const at = (/** @type {number} */ value) => from + ((to - from) * (value - low)) / (high - low);
  const step = even((high - low) / layout.nticks);
  // An axis without a range of its own counts rounds.
  return { at, ticks: layout.tickvals ?? steps(low, high, layout.dtick ?? (layout.range ? step : Math.max(1, step))) };
}

/** @param {number} low @param {number} high @param {number} step */
function steps(low, high, step) {
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

/** The next of 1, 2, 5, 10, … @param {number} step */
function even(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].filter((digit) => digit * power >= step)[0];
}

/** Ticks, grid and the axes' titles. @param {any} layout @param {Box} box @param {Axis} x @param {Axis} y */
function frameOf({ xaxis, yaxis, height }, box, x, y) {
  if (xaxis.visible === false) return [];
  const middle = (box.top + box.bottom) / 2;
  return [
    ...(yaxis.showgrid === false ? [] : y.ticks.map((tick) => svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) }))),
    ...y.ticks.map((tick) => text(said(tick, yaxis.tickformat), box.left - 4, y.at(tick) + 4, { "text-anchor": "end" })),
    ...x.ticks.map((tick) => text(said(tick, xaxis.tickformat), x.at(tick), box.bottom + 14, { "text-anchor": "middle" })),
    text(xaxis.title.text, (box.left + box.right) / 2, height - 5, { "text-anchor": "middle" }),
    text(yaxis.title.text, 7, middle, { "text-anchor": "middle", transform: `rotate(-90 7 ${middle})` }),
  ];
}

/** @param {any} trace @param {Axis} x @param {Axis} y */
function bars(trace, x, y) {
  return svg("g", {}, ...trace.x.flatMap((/** @type {any} */ _, /** @type {number} */ i) => {
    const [across, up, fill] = [trace.x[i], trace.y[i], [trace.marker.color].flat()];
    const colour = fill[i % fill.length];
    const label = trace.text?.[i] ?? "";
    const width = trace.width?.[i] ?? BAR;
    const thick = trace.orientation === "h" ? (BAR * Math.abs(y.at(trace.y[0]) - y.at(trace.y.at(-1)))) / (trace.y.length - 1) : x.at(width) - x.at(0);
    const [drawn, told] = trace.orientation === "h"
      ? [{ x: x.at(0), y: y.at(up) - thick / 2, width: x.at(across) - x.at(0), height: thick }, text(label, x.at(across) + 4, y.at(up) + 4, { class: "value" })]
      : [{ x: x.at(across) - thick / 2, y: y.at(up), width: thick, height: y.at(0) - y.at(up) }, text(label, x.at(across), y.at(up) - 4, { class: "value", "text-anchor": "middle" })];
    return [svg("rect", { ...drawn, fill: colour }, hint(trace, i)), told];
  }));
}

/** @param {any} trace @param {Axis} x @param {Axis} y */
function line(trace, x, y) {
  const { color: stroke, width, dash } = trace.line;
  const places = [...trace.x.keys()].filter((i) => trace.y[i] !== null).map((i) => ({ i, cx: x.at(trace.x[i]), cy: y.at(trace.y[i]) }));
  const dots = places.map(({ i, cx, cy }) => svg("circle", { cx, cy, r: REACH, fill: "transparent" }, hint(trace, i)));
  const points = places.map(({ cx, cy }) => `${cx},${cy}`).join(" ");
  const single = trace.mode === "markers" ? places.map(({ cx, cy }) => svg("circle", { cx, cy, r: REACH / 2, fill: stroke })) : [];
  return svg("g", {}, svg("polyline", { points, stroke, fill: "none", "stroke-width": width, "stroke-dasharray": dash ? "9 9" : "none" }), ...single, ...dots);
}

/** What the pointer is told of a value. @param {any} trace @param {number} i */
function hint(trace, i) {
  const values = /** @type {Record<string, any>} */ ({ x: trace.x[i], y: trace.y[i], customdata: trace.customdata?.[i] });
  const told = trace.hovertemplate.replace("<extra></extra>", "").replaceAll("<br>", "\n").replace(/%\{(\w+)(?:\[(\d)\])?(?::([^}]+))?\}/g,
    (/** @type {string} */ _, /** @type {string} */ name, /** @type {string} */ at, /** @type {string} */ format) => said(at ? values[name][at] : values[name], format));
  const node = svg("title");
  node.textContent = told;
  return node;
}

/** A value by one of the formats ".1%", ".3g" and ".3f". @param {any} value @param {string} [format] */
function said(value, format = "") {
  if (typeof value === "string") return value;
  const digits = Number(format[1]);
  if (format.endsWith("%")) return formatted(value, `.${digits}%`);
  if (format.endsWith("f")) return written(value.toFixed(digits));
  return written(String(Number(value.toPrecision(format ? digits : 12))));
}

/** @param {string} content @param {number} x @param {number} y @param {Record<string, any>} given */
function text(content, x, y, given) {
  const node = svg("text", { x, y, ...given });
  node.textContent = content;
  return node;
}
