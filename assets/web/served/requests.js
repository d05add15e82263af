// How it differs by request: a curve over all of them, quantiles, and the requests at either end.

import { make, svg } from "../shared/dom.js";
import { canvas, frame, path, tick } from "../shared/frame.js";
import { percent, two } from "../why/figures.js";

/** @typedef {import("./element.js").Host} Host */

/** The quantiles that a message brings. */
const QUANTILES = ["least", "tenth", "median", "ninth", "most"];

/** @param {Host} host */
export function requestsPart(host) {
  const { ui, say } = host;
  ui.spread = canvas("spread", (width) => drawSpread(host, width));
  ui.quantiles = make("dl", { class: "readout five", part: "quantiles" });
  ui.rows = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("served.ends") });
  ui.by_request = make("section", { part: "requests" }, make("h3", { text: say("served.by_request") }), ui.quantiles, ui.spread.box,
    make("h3", { text: say("served.ends") }), ui.rows);
  return ui.by_request;
}

/** @param {Host} host @param {any} figures */
export function renderRequests({ ui, say }, { curve, quantiles, rows }) {
  ui.by_request.classList.toggle("hidden", curve.length < 2);
  ui.quantiles.replaceChildren(...quantiles.map((/** @type {number} */ value, /** @type {number} */ i) =>
    make("div", {}, make("dt", { text: say(`served.${QUANTILES[i]}`) }), make("dd", { text: two(value) }))));
  const head = [...["request", "passes", "figure_tokens"].map((name) => say(`served.${name}`)), "α"].map((text) => make("th", { scope: "col", text }));
  const body = rows.map((/** @type {any} */ row) => make("tr", {},
    make("th", { scope: "row", text: [say("served.numbered", { number: row.number }), row.name].filter(Boolean).join(" · "), title: row.name || null }),
    make("td", { text: row.passes ?? say("why.not_known") }), make("td", { text: two(row.tokens_per_pass) }), make("td", { text: row.alpha === null ? say("why.not_known") : two(row.alpha) })));
  ui.rows.replaceChildren(make("table", { part: "rows" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  ui.spread.redraw();
}

/** @param {Host} host @param {number} width */
function drawSpread({ say, state }, width) {
  /** @type {number[]} */
  const curve = state.figures.curve;
  const most = 1.08 * Math.max(2, ...curve);
  const last = Math.max(1, curve.length - 1);
  const chart = frame(width, { name: say("served.spread_chart"), x: (share) => 0.02 + 0.96 * share, y: (value) => value / most, ticks: [], most, xName: say("served.axis_requests"), yName: say("served.figure_tokens"), tickText: tick });
  chart.node.append(path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }), path(curve.map((value, i) => [chart.x(i / last), chart.y(value)]), { class: "line p" }));
  curve.forEach((value, i) => chart.node.append(svg("circle", { class: "mark p", cx: chart.x(i / last), cy: chart.y(value), r: 2.5 }, svg("title", {}, say("served.point_request", { share: percent(i / last), tokens: two(value) })))));
  return chart.node;
}
