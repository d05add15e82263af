// The four charts' figures in plotly's language, from the values of specviz/views/charts.py.
//
// Colours have a contrast of at least 3:1 on light and dark grounds; the style sheet gives text the theme's colour.

import { fixed, formatted, written } from "../shared/numbers.js";

/** @typedef {import("../shared/words.js").Say} Say */
/** @typedef {{ data: Record<string, any>[], layout: Record<string, any> }} Figure */

const HEIGHT = 220; // px
// Not the page's own, which is wider on some systems: the narrowest card has 204 px for a title.
const FAMILY = "Arial, Helvetica, sans-serif";
const [GREEN, BLUE, AMBER, GREY, PALE] = ["#1a9c78", "#2f86c9", "#b97a1a", "#868b95", "rgba(134,139,149,.4)"];
const OUTSIDE = { textposition: "outside", textfont: { size: 11 }, cliponaxis: false }; // where bars carry their values

/** The keys of their names, in page order, for visitors who cannot see them. */
export const LABELS = ["charts.acceptance", "charts.tokens", "charts.position_label", "charts.time"];

/** @type {((values: any, say: Say) => Figure)[]} in page order */
export const FIGURES = [acceptance, tokensPerPass, positions, times];

/**
 * The running acceptance rate, and behind it the rate of each part of the text by itself.
 *
 * @param {{ rounds: number[], rates: (number | null)[], parts?: number[][] }} values
 * @param {Say} say
 */
function acceptance({ rounds: x, rates: y, parts = [] }, say) {
  const trace = { type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y, line: { color: GREEN, width: 2 },
    customdata: y.map((rate) => (rate === null ? "" : formatted(rate, ".1%"))), hovertemplate: hover(say("charts.acceptance_hover")) };
  const [firsts, tokens] = [0, 1].map((column) => parts.map((_, i) => (parts[i - 1]?.[column] ?? 0) + 1));
  const bars = { type: "bar", x: parts.map(([last], i) => (firsts[i] + last) / 2), width: parts.map(([last], i) => last - firsts[i] + 0.8),
    y: parts.map(([, , accepted, judged]) => (judged ? accepted / judged : null)), marker: { color: PALE },
    customdata: parts.map(([, last, accepted, judged], i) => [tokens[i], last, accepted, judged]), hovertemplate: hover(say("charts.part_hover")) };
  return figure([bars, trace], say("charts.acceptance"),
    { title: say("charts.round") }, { title: say("charts.acceptance_axis"), range: [0, 1.02], ...percents(0, 0.25, 0.5, 0.75, 1) });
}

/**
 * Tokens per target pass, and their mean over the run; `step` rounds share a bar.
 *
 * @param {{ rounds: number, step: number, means: number[], mean: number | null }} values
 * @param {Say} say
 */
function tokensPerPass({ rounds, step, means, mean }, say) {
  const spans = means.map((_, i) => [i * step + 1, Math.min((i + 1) * step, rounds)]);
  const data = [{ type: "bar", x: spans.map(([first, last]) => (first + last) / 2), y: means, width: means.map(() => 0.8 * step),
    customdata: spans.map(([first, last]) => (first === last ? String(first) : `${first}–${last}`)), marker: { color: BLUE },
    hovertemplate: hover(say(step === 1 ? "charts.tokens_hover" : "charts.tokens_hover_mean")) },
    ...(mean === null ? [] : [{ type: "scatter", mode: "lines", x: [0.5, rounds + 0.5], y: [mean, mean],
      line: { color: AMBER, width: 2, dash: "dash" }, hovertemplate: hover(say("charts.mean", { mean })) }])];
  const most = Math.max(1, ...means);
  return figure(data, mean === null ? say("charts.tokens") : say("charts.tokens_mean", { mean }), { title: say("charts.round") },
    { title: say("charts.tokens_axis"), range: [0, most * 1.08], tick0: 0, dtick: Math.ceil(most / 5) });
}

/**
 * The conditional acceptance rate by draft position: accepted / judged there. One that was never judged has no bar.
 *
 * @param {{ accepted: number[], judged: number[], trees: boolean }} values
 * @param {Say} say
 */
function positions({ accepted, judged, trees }, say) {
  const shown = [...judged.keys()].filter((i) => judged[i]);
  const rates = shown.map((i) => accepted[i] / judged[i]);
  const trace = { type: "bar", x: shown.map((i) => i + 1), y: rates, customdata: shown.map((i) => [accepted[i], judged[i]]), ...OUTSIDE,
    text: shown.length <= 8 ? rates.map((rate) => formatted(rate, ".0%")) : [], marker: { color: GREEN }, hovertemplate: hover(say("charts.position_hover")) };
  const last = judged.length;
  return figure([trace], say("charts.position"),
    { title: say(trees ? "charts.position_axis_in_trees" : "charts.position_axis"), range: [0.4, Math.max(1, last) + 0.6], tick0: 1,
      dtick: Math.max(1, Math.ceil(last / 8)) },
    { title: "", range: [0, 1.16], ...percents(0, 0.5, 1) });
}

/**
 * Milliseconds of a mean round: drafting, verifying, the rest.
 *
 * @param {{ rounds: number, unknown?: boolean, milliseconds: number[] }} values
 * @param {Say} say
 */
function times({ rounds, unknown, milliseconds: x }, say) {
  if (unknown) return figure([], say("charts.time_unknown"), { title: "", visible: false }, { title: "", visible: false });
  const total = x.reduce((sum, each) => sum + each, 0);
  const shares = x.map((each) => (total ? each / total : 0));
  const trace = { type: "bar", orientation: "h", y: ["drafting", "verifying", "rest"].map((part) => say(`charts.${part}`)), x, customdata: shares.map((share) => formatted(share, ".1%")), ...OUTSIDE,
    text: rounds ? x.map((each, i) => `${fixed(each, 1)}\u00a0ms · ${formatted(shares[i], ".0%")}`) : [], marker: { color: [AMBER, BLUE, GREY] },
    hovertemplate: hover(say("charts.time_hover")) };
  // Room for the longest bar's own label.
  const drawn = figure([trace], rounds ? say("charts.time_total", { milliseconds: total }) : say("charts.time"),
    { title: say("charts.time_axis"), range: [0, 2.3 * Math.max(0.001, ...x)], nticks: 3 },
    { title: "", autorange: "reversed", showgrid: false, ticksuffix: " " });
  drawn.layout.margin.l = 62;
  return drawn;
}

/** Ticks of an axis of shares, written as everywhere on the page. @param {...number} ticks */
const percents = (...ticks) => ({ tickvals: ticks, ticktext: ticks.map((tick) => formatted(tick, ".0%")), tickformat: ".0%" });

/** Without plotly's second box, which names the trace; it cuts what is wider than the chart. @param {string} text in lines */
const hover = (text) => `${text.replaceAll("\n", "<br>")}<extra></extra>`;

/**
 * @param {Record<string, any>[]} data @param {string} title
 * @param {Record<string, any>} x @param {Record<string, any>} y what is the axes' own; `title` is its text
 * @returns {Figure}
 */
function figure(data, title, x, y) {
  const axis = (/** @type {Record<string, any>} */ { title: text, ...own }) => ({ fixedrange: true, showline: false, zeroline: false,
    tickfont: { size: 11 }, title: { text, standoff: 6, font: { size: 11 } }, ...own });
  return {
    data,
    layout: {
      template: {}, height: HEIGHT, margin: { l: 44, r: 10, t: 34, b: 38 }, showlegend: false, dragmode: false, hovermode: "closest",
      title: { text: title, font: { size: 12 }, x: 0.02, xanchor: "left", y: 0.96, yanchor: "top" },
      font: { color: GREY, size: 11, family: FAMILY }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      separators: `${written(".")}\u202f`, // of decimals, then of thousands
      hoverlabel: { bgcolor: "#1d1f23", bordercolor: "#1d1f23", font: { color: "#ffffff", size: 12 } },
      xaxis: axis({ showgrid: false, nticks: 6, ...x }),
      yaxis: axis({ gridcolor: "rgba(134,139,149,.3)", nticks: 5, ...y }),
    },
  };
}
