// What a pass over K tokens costs here.

import { make, setText, svg } from "../shared/dom.js";
import { MARGIN, canvas, caption, frame, key, path, tick } from "../shared/frame.js";
import { ms, three, two } from "./figures.js";
import { GAMMAS } from "../shared/formulas.js";
import { isBusy, measuringLine } from "./measuring.js";
import { curveOf } from "./state.js";

/** @typedef {import("./state.js").Lab} Lab */
/** @typedef {ReturnType<typeof import("../shared/frame.js").frame>} Chart */

/** The longest chain of the page, and the one token more that its pass yields. */
const REACH = GAMMAS.length;

/** @param {Lab} lab */
export function passesCard(lab) {
  lab.ui.passesLine = measuringLine(lab, "passes");
  lab.ui.passes = canvas("passes", (width) => drawPasses(lab, width));
  lab.ui.wide = make("input", { type: "checkbox", disabled: true, on: { change: () => lab.ui.passes.redraw() } });
  lab.ui.finding = make("p", { class: "finding two", part: "passes-finding", text: lab.say("why.before_finding") });
  lab.ui.meaning = make("p", { part: "passes-meaning", text: lab.say("why.before_meaning") });
  lab.ui.machine = make("p", { class: "quiet", part: "machine" });
  lab.ui.table = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": lab.say("why.all_numbers") });
  lab.ui.roofline = key("p dashed", lab.say("why.key_roofline"));
  lab.ui.how = make("p", { class: "quiet" });
  lab.ui.numbers = make("details", { class: "hidden", part: "passes-numbers" }, make("summary", { text: lab.say("why.all_numbers") }), lab.ui.how, lab.ui.table);
  return make("section", { class: "card", "aria-labelledby": "passes-title" },
    make("h2", { id: "passes-title", text: lab.say("why.passes_title") }),
    make("p", { class: "lead", text: lab.say("why.passes_lead") }),
    ...lab.ui.passesLine.nodes, lab.ui.finding, lab.ui.passes.box,
    make("ul", { class: "legend" }, key("p line", lab.say("why.key_target")), key("q line", lab.say("why.key_draft")),
      lab.ui.roofline, key("flat", lab.say("why.key_flat"))),
    make("label", { class: "wide", part: "wider" }, lab.ui.wide, make("span", { text: lab.say("why.wider") })),
    make("div", { class: "after" }, lab.ui.meaning, lab.ui.machine, lab.ui.numbers));
}

/** @param {Lab} lab @param {number} width */
function drawPasses(lab, width) {
  const widest = lab.ui.wide.checked ? widestMeasured(lab) : REACH;
  const curves = (lab.state.passes?.curves ?? []).filter((curve) => curve.points.length)
    .map((curve) => ({ ...curve, points: curve.points.filter((point) => point.width <= widest) }));
  const highest = (curve) => Math.max(...curve.points.map((point) => Math.max(point.high, point.least ?? 0))) / curve.points[0].seconds;
  const most = 1.08 * Math.max(2, ...curves.map(highest));
  const step = Math.ceil((widest - 1) / 8);
  const ticks = Array.from({ length: Math.ceil(widest / step) }, (_, i) => 1 + i * step);
  const chart = frame(width, {
    name: curves.length ? lab.say("why.passes_chart", { n: curves[0].about_one }) : lab.say("why.passes_chart_empty"),
    x: (k) => 0.03 + (0.94 * (k - 1)) / (widest - 1), y: (ratio) => ratio / most, ticks, most,
    xName: lab.say("why.axis_k"), yName: lab.say("why.axis_ratio"), tickText: (value, step) => `${tick(value, step)}×`,
  });
  const target = curves.find((curve) => curve.role === "target");
  if (target && lab.state.measuring.passes.phase !== "running") chart.node.append(...cheapZone(lab, chart, target));
  chart.node.append(path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }));
  for (const curve of curves) chart.node.append(...passCurve(lab, chart, curve));
  chart.node.append(...draftMark(lab, chart));
  if (!curves.length) chart.node.append(caption((chart.left + chart.right) / 2, chart.y(1.5), lab.say(isBusy(lab.state.measuring.passes.phase) ? "why.preparing" : "why.not_measured"), { "text-anchor": "middle", class: "hint" }));
  return chart.node;
}

/** @param {Lab} lab */
const widestMeasured = (lab) => Math.max(REACH, ...(lab.state.passes?.curves ?? []).flatMap((curve) => curve.points.map((point) => point.width)));

/**
 * What the γ of the card below verifies in one pass.
 *
 * @param {Lab} lab @param {Chart} chart
 */
function draftMark(lab, chart) {
  const { gamma } = lab.state;
  if (gamma >= REACH) return [];
  const x = chart.x(gamma + 1);
  const anchor = x > (chart.left + chart.right) / 2 ? "end" : "start";
  return [path([[x, MARGIN.top], [x, chart.bottom]], { class: "here" }),
    caption(x + (anchor === "end" ? -5 : 5), chart.bottom - 7, lab.say("why.gamma_mark", { gamma, k: gamma + 1 }), { "text-anchor": anchor, class: "bestname" })];
}

/**
 * The widths whose pass costs about as much as one token's.
 *
 * @param {Lab} lab @param {Chart} chart @param {any} curve
 */
function cheapZone(lab, chart, curve) {
  const [from, to] = [chart.x(1), Math.min(chart.right, chart.x(curve.about_one))];
  if (to === from) return [];
  return [svg("rect", { class: "zone", x: from, y: MARGIN.top, width: to - from, height: chart.bottom - MARGIN.top }),
    caption(from + 6, MARGIN.top + 14, lab.say("why.zone", { n: curve.about_one }), { class: "hint" })];
}

/**
 * Whether what the machine can do at best is known: not if a pass was faster.
 *
 * @param {any} curve
 */
const isKnown = (curve) => curve.peak !== null;

/** @param {Lab} lab @param {Chart} chart @param {any} curve */
function passCurve(lab, chart, curve) {
  const one = curve.points[0].seconds;
  const at = (point, seconds) => [chart.x(point.width), chart.y(seconds / one)];
  const colour = curve.role === "target" ? "p" : "q";
  const marks = curve.points.flatMap((point) => {
    const [x, y] = at(point, point.seconds);
    const spread = path([at(point, point.low), at(point, point.high)], { class: `spread ${colour}` });
    const mark = colour === "p" ? svg("circle", { class: "mark p", cx: x, cy: y, r: 4 }) : svg("rect", { class: "mark q", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
    mark.append(svg("title", {}, lab.say(`why.point_${curve.role}`, { k: point.width, ms: ms(point.seconds), ratio: two(point.seconds / one) })));
    return [spread, mark];
  });
  const roofline = isKnown(curve) ? [path(curve.points.map((point) => at(point, point.least)), { class: `line dashed ${colour}` })] : [];
  return [...roofline, path(curve.points.map((point) => at(point, point.seconds)), { class: `line ${colour}` }), ...marks];
}

/** @param {Lab} lab */
export function renderPasses(lab) {
  const { passes, measuring: { passes: { phase } } } = lab.state;
  lab.ui.passesLine.show(passes?.fraction ?? 0, curveOf(lab, "target")?.points[0].repeats ?? 0);
  lab.ui.wide.disabled = widestMeasured(lab) === REACH;
  lab.ui.passes.redraw();
  const target = curveOf(lab, "target");
  if (!target || target.points.length < 2 || isBusy(phase)) return;
  lab.ui.roofline.classList.toggle("hidden", !isKnown(target));
  renderFinding(lab, target);
  renderMachine(lab, target);
  lab.ui.table.replaceChildren(numbersTable(lab));
  lab.ui.numbers.classList.remove("hidden");
}

/**
 * Where K costs about one and where it stops, and what that means for γ.
 *
 * @param {Lab} lab @param {any} target
 */
function renderFinding(lab, target) {
  const { points, about_one: k } = target;
  const [first, last] = [points[0], points.at(-1)];
  const beyond = points.find((point) => point.width > k);
  const ratio = (point) => two(point.seconds / first.seconds);
  const { limit } = lab.state.passes;
  if (k === 1 && beyond) setText(lab.ui.finding, lab.say("why.finding_none", { k: beyond.width, ratio: ratio(beyond) }));
  else if (beyond) setText(lab.ui.finding, lab.say("why.finding_until", { k, limit, beyond: beyond.width, ratio: ratio(beyond) }));
  else setText(lab.ui.finding, lab.say("why.finding_all", { k, ratio: ratio(last) }));
  const meaning = k === 1 ? lab.say("why.meaning_none") : lab.say("why.meaning", { n: k - 1, limit });
  setText(lab.ui.meaning, target.experts ? `${meaning} ${lab.say("why.experts", target.experts)}` : meaning);
}

/**
 * What the machine could do at best, and how all of it was measured.
 *
 * @param {Lab} lab @param {any} target
 */
function renderMachine(lab, target) {
  const { context, dtype, device, threads, passes } = lab.state.passes;
  const place = threads === null ? device : `${device}, ${lab.say("why.threads", { n: threads })}`;
  setText(lab.ui.machine, isKnown(target) ? atBest(lab, target) : lab.say("why.machine_unknown"));
  setText(lab.ui.how, lab.say("why.how", { mb: three(target.weight_bytes / 1e6), context, dtype, place, passes: lab.say(`passes.${passes}`) }));
}

/** @param {Lab} lab @param {any} target */
function atBest(lab, target) {
  const first = target.points[0];
  const overhead = lab.state.passes.passes === "plain" ? "why.machine_overhead" : "why.machine_prepared";
  const why = lab.say(first.seconds > 2 * first.least ? overhead : "why.machine_memory");
  return `${lab.say("why.machine", { bandwidth: three(target.bandwidth / 1e9), peak: three(target.peak / 1e9), least: ms(first.least), measured: ms(first.seconds) })} ${why}`;
}

/** @param {Lab} lab */
function numbersTable(lab) {
  const curves = ["target", "draft"].map((role) => curveOf(lab, role)).filter(Boolean);
  const head = ["K", ...curves.flatMap((curve) => [lab.say(`why.column_${curve.role}`), "T(K)/T(1)", lab.say("why.column_least")])];
  const cells = (curve, i) => {
    const point = curve.points[i];
    return point ? [ms(point.seconds), two(point.seconds / curve.points[0].seconds), isKnown(curve) ? ms(point.least) : lab.say("why.not_known")] : ["", "", ""];
  };
  const row = (point, i) => make("tr", {}, make("th", { scope: "row", text: point.width }), ...curves.flatMap((curve) => cells(curve, i)).map((text) => make("td", { text })));
  return make("table", { part: "passes-table" }, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...curves[0].points.map(row)));
}
