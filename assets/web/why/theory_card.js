// What decides the speedup: three sliders, and the formula's curves beside the runs of this page.

import { make, setText, svg } from "../shared/dom.js";
import { MARGIN, canvas, caption, frame, key, path, tick } from "../shared/frame.js";
import { runName, times, two } from "./figures.js";
import { forcedPart, renderForced } from "./forced_part.js";
import { GAMMAS, expectedSpeedup, expectedTokens, optimalGamma } from "../shared/formulas.js";
import { renderSliders, sliderRow } from "./sliders.js";
import { hasVerification, lastRun, verification } from "./state.js";

/** @typedef {import("./state.js").Lab} Lab */
/** @typedef {ReturnType<typeof import("../shared/frame.js").frame>} Chart */

/** @type {("alpha" | "cost" | "gamma")[]} */
const SLIDERS = ["alpha", "cost", "gamma"];

/** @param {Lab} lab */
export function theoryCard(lab) {
  lab.ui.sources = ["own", "run"].map((name) => make("input", { type: "radio", name: "source", value: name, on: { change: () => choose(lab, name) } }));
  lab.ui.runLabel = make("span");
  lab.ui.theory = canvas("theory", (width) => drawTheory(lab, width));
  lab.ui.readout = make("dl", { class: "readout", part: "readout" });
  lab.ui.verdict = make("p", { class: "finding", part: "theory-verdict" });
  lab.ui.measuredKey = make("ul", { class: "legend" }, key("p line", lab.say("why.key_tokens")), key("ink line", lab.say("why.key_speedup")), key("ink dashed", lab.say("why.key_speedup_measured")),
    key("dot", lab.say("why.key_run_tokens")), key("diamond", lab.say("why.key_run_speedup")), key("cross", lab.say("why.key_forced")));
  return make("section", { class: "card", "aria-labelledby": "theory-title" },
    make("h2", { id: "theory-title", text: lab.say("why.theory_title") }),
    make("p", { class: "lead", text: lab.say("why.theory_lead") }),
    make("fieldset", { class: "source" }, make("legend", { text: lab.say("why.source") }),
      make("label", {}, lab.ui.sources[0], make("span", { text: lab.say("why.source_own") })), make("label", {}, lab.ui.sources[1], lab.ui.runLabel)),
    make("div", { class: "sliders" }, ...SLIDERS.map((name) => sliderRow(lab, name, name))),
    lab.ui.readout, lab.ui.theory.box, lab.ui.measuredKey, make("div", { class: "result" }, lab.ui.verdict),
    make("p", { class: "quiet", text: lab.say("why.independent") }), forcedPart(lab));
}

/** @param {Lab} lab @param {string} source */
function choose(lab, source) {
  lab.state.source = source;
  lab.state.touched = true;
  if (source === "run") takeRun(lab);
  lab.reckon();
}

/** @param {Lab} lab */
export function takeRun(lab) {
  const { alpha, cost_coefficient: cost, num_draft_tokens: gamma } = lastRun(lab).figures;
  Object.assign(lab.state, { alpha, cost, gamma });
}

/** @param {Lab} lab */
export function renderTheory(lab) {
  const run = lastRun(lab);
  lab.ui.sources.forEach((input) => (input.checked = input.value === lab.state.source));
  lab.ui.sources[1].disabled = !run;
  setText(lab.ui.runLabel, run ? lab.say("why.source_run", { run: runName(lab, run) }) : lab.say("why.source_no_run"));
  renderSliders(lab);
  renderReadout(lab);
  renderForced(lab);
  lab.ui.theory.redraw();
  lab.ui.passes.redraw();
}

/** @param {Lab} lab */
function renderReadout(lab) {
  const { alpha, cost, gamma } = lab.state;
  const best = optimalGamma(alpha, cost);
  const figures = [["tokens", two(expectedTokens(alpha, gamma))], ["speedup", times(expectedSpeedup(alpha, gamma, cost))],
    ["measured", hasVerification(lab) ? times(expectedSpeedup(alpha, gamma, cost, verification(lab, gamma))) : "—"], ["best", best ? `γ = ${best}: ${times(expectedSpeedup(alpha, best, cost))}` : "—"]];
  lab.ui.readout.replaceChildren(...figures.map(([name, text]) => make("div", { "data-figure": name }, make("dt", { text: lab.say(`why.figure_${name}`) }), make("dd", { text }))));
  const values = { alpha: two(alpha), cost: two(cost), best, speedup: times(expectedSpeedup(alpha, best, cost)) };
  const verdict = alpha > cost ? "why.breaks_even" : "why.never_pays";
  const bestMeasured = hasVerification(lab) ? optimalGamma(alpha, cost, 16, (gamma) => verification(lab, gamma)) : null;
  const also = bestMeasured === null ? "" : bestMeasured === 0 ? ` ${lab.say("why.never_pays_measured")}`
    : ` ${lab.say("why.best_measured", { best: bestMeasured, speedup: times(expectedSpeedup(alpha, bestMeasured, cost, verification(lab, bestMeasured))) })}`;
  setText(lab.ui.verdict, lab.say(verdict, values) + also);
}

/** @param {Lab} lab @param {number} width */
function drawTheory(lab, width) {
  const { alpha, cost, gamma } = lab.state;
  /** @type {Record<string, (gamma: number) => number>} */
  const curves = { tokens: (g) => expectedTokens(alpha, g), speedup: (g) => expectedSpeedup(alpha, g, cost) };
  if (hasVerification(lab)) curves.measured = (g) => expectedSpeedup(alpha, g, cost, verification(lab, g));
  const shownRuns = lab.state.runs.filter((run) => run.figures.num_draft_tokens <= 16);
  const forced = lab.state.forced.filter((one) => one.figures && two(one.alpha) === two(alpha));
  const heights = shownRuns.flatMap(({ figures }) => [figures.tokens_per_pass, figures.speedup ?? 0]);
  const most = 1.08 * Math.max(2.5, expectedTokens(alpha, 16), ...heights);
  const chart = frame(width, {
    name: lab.say("why.theory_chart", { alpha: two(alpha), cost: two(cost), best: optimalGamma(alpha, cost) }),
    x: (g) => 0.02 + (0.96 * g) / 16, y: (value) => value / most, ticks: [0, 2, 4, 6, 8, 10, 12, 14, 16], most,
    xName: lab.say("why.axis_gamma"), yName: lab.say("why.axis_times"), tickText: tick,
  });
  chart.node.append(svg("rect", { class: "slower", x: chart.left, y: chart.y(1), width: chart.right - chart.left, height: chart.bottom - chart.y(1) }));
  if (chart.bottom - chart.y(1) > 18) chart.node.append(caption(chart.right - 6, chart.bottom - 6, lab.say("why.slower"), { "text-anchor": "end", class: "no" }));
  chart.node.append(path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }), ...(gamma < GAMMAS.length ? [path([[chart.x(gamma), MARGIN.top], [chart.x(gamma), chart.bottom]], { class: "here" })] : []));
  const kinds = { tokens: "line p", speedup: "line ink", measured: "line ink dashed" };
  for (const [name, curve] of Object.entries(curves)) chart.node.append(path(GAMMAS.map((g) => [chart.x(g), chart.y(curve(g))]), { class: kinds[name], "data-curve": name }));
  chart.node.append(...forced.map((one) => forcedMark(chart, one)), ...bestMark(lab, chart, curves.speedup), ...shownRuns.flatMap((run, i) => runMarks(lab, chart, run, i === shownRuns.length - 1)));
  return chart.node;
}

/** @param {Lab} lab @param {Chart} chart @param {(gamma: number) => number} speedup */
function bestMark(lab, chart, speedup) {
  const best = optimalGamma(lab.state.alpha, lab.state.cost);
  if (best === 0) return [];
  const [x, y] = [chart.x(best), chart.y(speedup(best))];
  const anchor = x < chart.left + 64 ? "start" : x > chart.right - 64 ? "end" : "middle";
  return [svg("circle", { class: "best", cx: x, cy: y, r: 6 }), caption(x, y - 11, lab.say("why.best", { best }), { "text-anchor": anchor, class: "bestname" })];
}

/** @param {Chart} chart @param {any} forced */
function forcedMark(chart, { num_draft_tokens: gamma, figures }) {
  const [x, y] = [chart.x(gamma), chart.y(figures.speedup_measured)];
  const mark = svg("path", { class: "forced", d: `M${x - 6} ${y - 6}L${x + 6} ${y + 6}M${x - 6} ${y + 6}L${x + 6} ${y - 6}` });
  mark.append(svg("title", {}, `γ = ${gamma}: ${times(figures.speedup_measured)}`));
  return mark;
}

/**
 * A run of this page: what it kept, and what it gained if that was measured.
 *
 * @param {Lab} lab @param {Chart} chart @param {any} run @param {boolean} latest
 */
function runMarks(lab, chart, run, latest) {
  const { num_draft_tokens: gamma, tokens_per_pass: tokens, speedup } = run.figures;
  const x = chart.x(gamma);
  const said = (node, text) => { node.append(svg("title", {}, text)); return node; };
  const age = latest ? "latest" : "earlier";
  const marks = [said(svg("circle", { class: `run p ${age}`, cx: x, cy: chart.y(tokens), r: 5 }), lab.say("why.run_tokens", { run: runName(lab, run), tokens: two(tokens) }))];
  if (speedup !== null) {
    const y = chart.y(speedup);
    marks.push(said(svg("path", { class: `run ink ${age}`, d: `M${x} ${y - 6.5}L${x + 6.5} ${y}L${x} ${y + 6.5}L${x - 6.5} ${y}Z` }), lab.say("why.run_speedup", { run: runName(lab, run), speedup: times(speedup) })));
  }
  return marks;
}
