// The lab on why speculation works: what a pass costs here, what decides the speedup, what limits the last run.
//
// The body of a gr.HTML component's js_on_load: `element`, `props` and `watch` are given, `STYLE` (why.css), the texts
// and the helpers of dom.js are put in front. A message holds sections (specviz/views/why_messages.py); one that it
// leaves out stays as it is. The charts are drawn for the width there is, so their type keeps its size on a phone.

const host = element.querySelector(".specviz-why");
const shadow = host.attachShadow({ mode: "open" });

const GAMMAS = Array.from({ length: 17 }, (_, gamma) => gamma); // 0 is plain decoding, the start of every curve
const HEIGHT = 280;
const MARGIN = { left: 38, right: 14, top: 26, bottom: 40 };
const BUSY = ["preparing", "running"];

// --- closed forms: those of specviz/theory.py and specviz/diagnosis.py ------------------------------------------------

/** Tokens per target pass, (1 − α^(γ+1)) / (1 − α): Leviathan et al. 2023, eq. 1. */
function expectedTokens(alpha, gamma) {
  return alpha === 1 ? gamma + 1 : (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

/** That over γc + V, Thm 3.8, whose V is 1; beside it V = T(γ+1)/T(1) as measured. */
function expectedSpeedup(alpha, gamma, cost, verification = 1) {
  return expectedTokens(alpha, gamma) / (gamma * cost + verification);
}

/** The γ from 0 to `longest` with the highest expected speedup. */
function optimalGamma(alpha, cost, longest = 16, verification = () => 1) {
  const speedup = (gamma) => expectedSpeedup(alpha, gamma, cost, verification(gamma));
  return GAMMAS.slice(0, longest + 1).reduce((best, gamma) => (speedup(gamma) > speedup(best) ? gamma : best), 0);
}

/** T(width)/T(1) of a curve, a straight line between measured widths; null outside them. */
function passRatio(curve, width) {
  const points = curve?.points ?? [];
  const right = points.findIndex((point) => point.width >= width);
  if (right < 0 || points[0].width > width) return null;
  const [a, b] = [points[Math.max(0, right - 1)], points[right]];
  const share = a === b || b.width === width ? 1 : (width - a.width) / (b.width - a.width);
  return (a.seconds + share * (b.seconds - a.seconds)) / points[0].seconds;
}

// --- state ------------------------------------------------------------------------------------------------------------

const state = { story: null, passes: null, phase: "empty", runs: [], problem: "", source: "own", touched: false, alpha: 0.7, cost: 0.2, gamma: 4 };

host.specviz = { state, expectedTokens, expectedSpeedup, optimalGamma, passRatio };

const lastRun = () => state.runs.at(-1) ?? null;
const curveOf = (role) => state.passes?.curves.find((curve) => curve.role === role && curve.points.length) ?? null;

/** Whether verification was measured far enough to stand in the place of the formula's 1. */
function hasVerification() {
  return passRatio(curveOf("target"), GAMMAS.at(-1) + 1) !== null;
}

const verification = (gamma) => passRatio(curveOf("target"), gamma + 1);

// --- figures as text ----------------------------------------------------------------------------------------------------

const times = (x) => `${x.toFixed(2)}×`;
const two = (x) => x.toFixed(2);
const percent = (x) => `${Math.round(100 * x)}\u202f%`;
const three = (x) => String(x >= 100 ? Math.round(x) : Number(x.toPrecision(3)));
const ms = (seconds) => (1000 * seconds).toFixed(seconds < 0.1 ? 2 : 0);
const temperature = (x) => (x === 0 ? say("why.greedy") : say("why.temperature", { value: Number(x.toFixed(2)) }));
const runName = (run) => `${run.drafter}, γ = ${run.figures.num_draft_tokens}, ${temperature(run.temperature)}`;

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// --- drawing --------------------------------------------------------------------------------------------------------------

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const caption = (x, y, text, attributes = {}) => svg("text", { x, y, ...attributes }, text);
const path = (points, attributes) => svg("path", { d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), ...attributes });

/** A distance between ticks that gives at most six up to `most`. */
function tickStep(most) {
  const size = 10 ** Math.floor(Math.log10(most / 6));
  return [1, 2, 5, 10].map((n) => n * size).find((step) => most / step <= 6);
}

/** The frame of a chart: { node, x, y, right, bottom }, with ticks and names at both axes. */
function frame(width, { name, x, y, ticks, most, xName, yName, tickText }) {
  const right = width - MARGIN.right;
  const bottom = HEIGHT - MARGIN.bottom;
  const place = { x: (value) => MARGIN.left + x(value) * (right - MARGIN.left), y: (value) => bottom - (y(value) * (bottom - MARGIN.top)) };
  const node = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": name });
  const step = tickStep(most);
  for (let value = 0; value <= most * 1.0001; value += step) {
    node.append(path([[MARGIN.left, place.y(value)], [right, place.y(value)]], { class: "grid" }));
    node.append(caption(MARGIN.left - 6, place.y(value) + 4, tickText(value, step), { "text-anchor": "end" }));
  }
  for (const value of ticks) node.append(caption(place.x(value), bottom + 16, value, { "text-anchor": "middle" }));
  node.append(caption(right, HEIGHT - 5, xName, { "text-anchor": "end" }), caption(4, 11, yName));
  return { node, ...place, left: MARGIN.left, right, bottom };
}

const tick = (value, step) => value.toFixed(step < 1 ? 1 : 0);

/** What is drawn in a box is drawn anew when its width changes. */
function canvas(name, draw) {
  const box = make("div", { class: "chart", part: name });
  const redraw = () => box.clientWidth && box.replaceChildren(draw(box.clientWidth));
  new ResizeObserver(redraw).observe(box);
  return { box, redraw };
}

const key = (kind, text) => make("li", { class: kind }, text);

// --- card 1: what a pass costs ----------------------------------------------------------------------------------------------

const ui = {};

function passesCard() {
  ui.bar = make("i");
  ui.track = make("div", { class: "track idle", role: "progressbar", "aria-label": say("why.progress"), "aria-valuemin": "0", "aria-valuemax": "100" }, ui.bar);
  ui.status = make("p", { class: "says", role: "status", part: "passes-status" });
  ui.problem = make("p", { class: "note hidden", role: "alert", part: "passes-problem" });
  ui.passes = canvas("passes", drawPasses);
  ui.finding = make("p", { class: "finding", part: "passes-finding", text: say("why.before_finding") });
  ui.meaning = make("p", { part: "passes-meaning", text: say("why.before_meaning") });
  ui.machine = make("p", { class: "quiet", part: "machine" });
  ui.table = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("why.all_numbers") });
  ui.how = make("p", { class: "quiet" });
  ui.numbers = make("details", { class: "hidden", part: "passes-numbers" }, make("summary", { text: say("why.all_numbers") }), ui.how, ui.table);
  return make("section", { class: "card", "aria-labelledby": "passes-title" },
    make("h2", { id: "passes-title", text: say("why.passes_title") }),
    make("p", { class: "lead", text: say("why.passes_lead") }),
    ui.status, ui.track, ui.problem, ui.passes.box,
    make("ul", { class: "legend" }, key("p line", say("why.key_target")), key("q line", say("why.key_draft")),
      key("p dashed", say("why.key_roofline")), key("flat", say("why.key_flat"))),
    make("div", { class: "after" }, ui.finding, ui.meaning, ui.machine, ui.numbers));
}

function drawPasses(width) {
  const curves = (state.passes?.curves ?? []).filter((curve) => curve.points.length);
  const highest = (curve) => Math.max(...curve.points.map((point) => Math.max(point.high, point.least))) / curve.points[0].seconds;
  const most = 1.08 * Math.max(2, ...curves.map(highest));
  const widest = Math.max(64, ...curves.flatMap((curve) => curve.points.map((point) => point.width)));
  const ticks = [1, 2, 4, 8, 16, 32, 64].filter((k) => k <= widest);
  const chart = frame(width, {
    name: curves.length ? say("why.passes_chart", { n: curves[0].about_one }) : say("why.passes_chart_empty"),
    x: (k) => 0.03 + (0.94 * Math.log2(k)) / Math.log2(widest), y: (ratio) => ratio / most, ticks, most,
    xName: say("why.axis_k"), yName: say("why.axis_ratio"), tickText: (value, step) => `${tick(value, step)}×`,
  });
  const target = curves.find((curve) => curve.role === "target");
  if (target && state.phase !== "running") chart.node.append(...cheapZone(chart, target));
  chart.node.append(path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }));
  for (const curve of curves) chart.node.append(...passCurve(chart, curve));
  if (!curves.length) chart.node.append(caption((chart.left + chart.right) / 2, chart.y(1.5), say(BUSY.includes(state.phase) ? "why.preparing" : "why.not_measured"), { "text-anchor": "middle", class: "hint" }));
  return chart.node;
}

/** The widths whose pass costs about as much as one token's. */
function cheapZone(chart, curve) {
  const [from, to] = [chart.x(1), chart.x(curve.about_one)];
  if (to === from) return [];
  return [svg("rect", { class: "zone", x: from, y: MARGIN.top, width: to - from, height: chart.bottom - MARGIN.top }),
    caption(from + 6, MARGIN.top + 14, say("why.zone", { n: curve.about_one }), { class: "hint" })];
}

function passCurve(chart, curve) {
  const one = curve.points[0].seconds;
  const at = (point, seconds) => [chart.x(point.width), chart.y(seconds / one)];
  const colour = curve.role === "target" ? "p" : "q";
  const marks = curve.points.flatMap((point) => {
    const [x, y] = at(point, point.seconds);
    const spread = path([at(point, point.low), at(point, point.high)], { class: `spread ${colour}` });
    const mark = colour === "p" ? svg("circle", { class: "mark p", cx: x, cy: y, r: 4 }) : svg("rect", { class: "mark q", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
    mark.append(svg("title", {}, say(`why.point_${curve.role}`, { k: point.width, ms: ms(point.seconds), ratio: two(point.seconds / one) })));
    return [spread, mark];
  });
  return [path(curve.points.map((point) => at(point, point.least)), { class: `line dashed ${colour}` }),
    path(curve.points.map((point) => at(point, point.seconds)), { class: `line ${colour}` }), ...marks];
}

function renderPasses() {
  const { phase, passes, problem } = state;
  const busy = BUSY.includes(phase);
  setText(ui.status, passes || busy ? say(`why.phase_${phase}`, { percent: percent(passes?.fraction ?? 0), repeats: curveOf("target")?.points[0].repeats ?? 0 }) : say("why.phase_empty"));
  ui.track.classList.toggle("idle", !busy);
  const done = phase === "preparing" ? 0 : passes?.fraction ?? 0;
  ui.bar.style.width = `${100 * done}%`;
  ui.track.setAttribute("aria-valuenow", String(Math.round(100 * done)));
  ui.problem.classList.toggle("hidden", !problem);
  setText(ui.problem, problem);
  ui.passes.redraw();
  const target = curveOf("target");
  if (!target || target.points.length < 2 || busy) return;
  renderFinding(target);
  ui.table.replaceChildren(numbersTable());
  ui.numbers.classList.remove("hidden");
}

/** Where K costs about one and where it stops, what that means for γ, and what the machine could do at best. */
function renderFinding(target) {
  const { points, about_one: k } = target;
  const [first, last] = [points[0], points.at(-1)];
  const beyond = points.find((point) => point.width > k);
  const ratio = (point) => two(point.seconds / first.seconds);
  const limit = String(state.passes.limit);
  if (k === 1 && beyond) setText(ui.finding, say("why.finding_none", { k: beyond.width, ratio: ratio(beyond) }));
  else if (beyond) setText(ui.finding, say("why.finding_until", { k, limit, beyond: beyond.width, ratio: ratio(beyond) }));
  else setText(ui.finding, say("why.finding_all", { k, ratio: ratio(last) }));
  setText(ui.meaning, k === 1 ? say("why.meaning_none") : say("why.meaning", { gamma: k - 1, k }));
  const { context, dtype, device, threads, passes } = state.passes;
  const place = threads === null ? device : `${device}, ${say("why.threads", { n: threads })}`;
  const figures = { mb: three(target.weight_bytes / 1e6), bandwidth: three(target.bandwidth / 1e9), peak: three(target.peak / 1e9), least: ms(first.least), measured: ms(first.seconds) };
  const overhead = passes === "plain" ? "why.machine_overhead" : "why.machine_prepared";
  const why = say(first.seconds > 2 * first.least ? overhead : "why.machine_memory");
  setText(ui.machine, `${say("why.machine", figures)} ${why}`);
  setText(ui.how, say("why.how", { ...figures, context, dtype, place, passes: say(`passes.${passes}`) }));
}

function numbersTable() {
  const curves = ["target", "draft"].map(curveOf).filter(Boolean);
  const head = ["K", ...curves.flatMap((curve) => [say(`why.column_${curve.role}`), "T(K)/T(1)", say("why.column_least")])];
  const cells = (curve, i) => {
    const point = curve.points[i];
    return point ? [ms(point.seconds), two(point.seconds / curve.points[0].seconds), ms(point.least)] : ["", "", ""];
  };
  const row = (point, i) => make("tr", {}, make("th", { scope: "row", text: point.width }), ...curves.flatMap((curve) => cells(curve, i)).map((text) => make("td", { text })));
  return make("table", { part: "passes-table" }, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...curves[0].points.map(row)));
}

// --- card 2: what decides the speedup ---------------------------------------------------------------------------------------

const SLIDERS = [
  { name: "alpha", sign: "α", most: 1, least: 0, step: 0.01 },
  { name: "cost", sign: "c", most: 1, least: 0, step: 0.01 },
  { name: "gamma", sign: "γ", most: 16, least: 1, step: 1 },
];

function theoryCard() {
  ui.sliders = Object.fromEntries(SLIDERS.map((slider) => [slider.name, sliderRow(slider)]));
  ui.sources = ["own", "run"].map((name) => make("input", { type: "radio", name: "source", value: name, on: { change: () => choose(name) } }));
  ui.runLabel = make("span");
  ui.theory = canvas("theory", drawTheory);
  ui.readout = make("dl", { class: "readout", part: "readout" });
  ui.verdict = make("p", { class: "finding", part: "theory-verdict" });
  ui.measuredKey = make("ul", { class: "legend" }, key("p line", say("why.key_tokens")), key("ink line", say("why.key_speedup")), key("ink dashed", say("why.key_speedup_measured")),
    key("dot", say("why.key_run_tokens")), key("diamond", say("why.key_run_speedup")));
  return make("section", { class: "card", "aria-labelledby": "theory-title" },
    make("h2", { id: "theory-title", text: say("why.theory_title") }),
    make("p", { class: "lead", text: say("why.theory_lead") }),
    make("fieldset", { class: "source" }, make("legend", { text: say("why.source") }),
      make("label", {}, ui.sources[0], make("span", { text: say("why.source_own") })), make("label", {}, ui.sources[1], ui.runLabel)),
    make("div", { class: "sliders" }, ...SLIDERS.map(({ name }) => ui.sliders[name].row)),
    ui.readout, ui.theory.box, ui.measuredKey, make("div", { class: "result" }, ui.verdict),
    make("p", { class: "quiet", text: say("why.independent") }));
}

/** A slider that says its value; `any` step lets it hold a run's exact figure, what is set by hand is rounded. */
function sliderRow({ name, sign, least, most, step }) {
  const output = make("output", { for: name });
  const onInput = () => set({ [name]: Number((Math.round(Number(input.value) / step) * step).toFixed(2)) });
  const input = make("input", { type: "range", id: name, min: least, max: most, step: step < 1 ? "any" : step, "data-slider": name, on: { input: onInput, keydown: onKey } });
  function onKey(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by || step >= 1) return;
    event.preventDefault();
    set({ [name]: Number(Math.min(most, Math.max(least, state[name] + by * step)).toFixed(2)) });
  }
  return { input, output, row: make("div", { class: "slider" }, make("label", { for: name }, make("b", { text: sign }), ` ${say(`why.slider_${name}`)}`), output, input) };
}

function set(values) {
  Object.assign(state, values, { source: "own", touched: true });
  renderTheory();
}

function choose(source) {
  state.source = source;
  state.touched = true;
  if (source === "run") takeRun();
  renderTheory();
}

function takeRun() {
  const { alpha, cost_coefficient: cost, num_draft_tokens: gamma } = lastRun().figures;
  Object.assign(state, { alpha, cost: Math.min(1, cost), gamma: Math.min(16, gamma) });
}

function renderTheory() {
  const run = lastRun();
  ui.sources.forEach((input) => (input.checked = input.value === state.source));
  ui.sources[1].disabled = !run;
  setText(ui.runLabel, run ? say("why.source_run", { run: runName(run) }) : say("why.source_no_run"));
  for (const { name } of SLIDERS) {
    const { input, output } = ui.sliders[name];
    input.value = state[name];
    setText(output, name === "gamma" ? String(state.gamma) : two(state[name]));
    input.setAttribute("aria-valuetext", output.textContent);
  }
  renderReadout();
  ui.theory.redraw();
}

function renderReadout() {
  const { alpha, cost, gamma } = state;
  const best = optimalGamma(alpha, cost);
  const figures = [["tokens", two(expectedTokens(alpha, gamma))], ["speedup", times(expectedSpeedup(alpha, gamma, cost))],
    ["measured", hasVerification() ? times(expectedSpeedup(alpha, gamma, cost, verification(gamma))) : "—"], ["best", best ? `γ = ${best}: ${times(expectedSpeedup(alpha, best, cost))}` : "—"]];
  ui.readout.replaceChildren(...figures.map(([name, text]) => make("div", { "data-figure": name }, make("dt", { text: say(`why.figure_${name}`) }), make("dd", { text }))));
  const values = { alpha: two(alpha), cost: two(cost), best, speedup: times(expectedSpeedup(alpha, best, cost)) };
  const verdict = alpha > cost ? "why.breaks_even" : "why.never_pays";
  const bestMeasured = hasVerification() ? optimalGamma(alpha, cost, 16, verification) : null;
  const also = bestMeasured === null ? "" : bestMeasured === 0 ? ` ${say("why.never_pays_measured")}`
    : ` ${say("why.best_measured", { best: bestMeasured, speedup: times(expectedSpeedup(alpha, bestMeasured, cost, verification(bestMeasured))) })}`;
  setText(ui.verdict, say(verdict, values) + also);
}

function drawTheory(width) {
  const { alpha, cost, gamma } = state;
  const curves = { tokens: (g) => expectedTokens(alpha, g), speedup: (g) => expectedSpeedup(alpha, g, cost) };
  if (hasVerification()) curves.measured = (g) => expectedSpeedup(alpha, g, cost, verification(g));
  const shownRuns = state.runs.filter((run) => run.figures.num_draft_tokens <= 16);
  const heights = shownRuns.flatMap(({ figures }) => [figures.tokens_per_pass, figures.speedup ?? 0]);
  const most = 1.08 * Math.max(2.5, expectedTokens(alpha, 16), ...heights);
  const chart = frame(width, {
    name: say("why.theory_chart", { alpha: two(alpha), cost: two(cost), best: optimalGamma(alpha, cost) }),
    x: (g) => 0.02 + (0.96 * g) / 16, y: (value) => value / most, ticks: [0, 2, 4, 6, 8, 10, 12, 14, 16], most,
    xName: say("why.axis_gamma"), yName: say("why.axis_times"), tickText: tick,
  });
  chart.node.append(svg("rect", { class: "slower", x: chart.left, y: chart.y(1), width: chart.right - chart.left, height: chart.bottom - chart.y(1) }));
  if (chart.bottom - chart.y(1) > 18) chart.node.append(caption(chart.right - 6, chart.bottom - 6, say("why.slower"), { "text-anchor": "end", class: "no" }));
  chart.node.append(path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }), path([[chart.x(gamma), MARGIN.top], [chart.x(gamma), chart.bottom]], { class: "here" }));
  const kinds = { tokens: "line p", speedup: "line ink", measured: "line ink dashed" };
  for (const [name, curve] of Object.entries(curves)) chart.node.append(path(GAMMAS.map((g) => [chart.x(g), chart.y(curve(g))]), { class: kinds[name], "data-curve": name }));
  chart.node.append(...bestMark(chart, curves.speedup), ...shownRuns.flatMap((run, i) => runMarks(chart, run, i === shownRuns.length - 1)));
  return chart.node;
}

function bestMark(chart, speedup) {
  const best = optimalGamma(state.alpha, state.cost);
  if (best === 0) return [];
  const [x, y] = [chart.x(best), chart.y(speedup(best))];
  const anchor = x < chart.left + 64 ? "start" : x > chart.right - 64 ? "end" : "middle";
  return [svg("circle", { class: "best", cx: x, cy: y, r: 6 }), caption(x, y - 11, say("why.best", { best }), { "text-anchor": anchor, class: "bestname" })];
}

/** A run of this page: what it kept, and what it gained if that was measured. */
function runMarks(chart, run, latest) {
  const { num_draft_tokens: gamma, tokens_per_pass: tokens, speedup } = run.figures;
  const x = chart.x(gamma);
  const said = (node, text) => { node.append(svg("title", {}, text)); return node; };
  const age = latest ? "latest" : "earlier";
  const marks = [said(svg("circle", { class: `run p ${age}`, cx: x, cy: chart.y(tokens), r: 5 }), say("why.run_tokens", { run: runName(run), tokens: two(tokens) }))];
  if (speedup !== null) {
    const y = chart.y(speedup);
    marks.push(said(svg("path", { class: `run ink ${age}`, d: `M${x} ${y - 6.5}L${x + 6.5} ${y}L${x} ${y + 6.5}L${x - 6.5} ${y}Z` }), say("why.run_speedup", { run: runName(run), speedup: times(speedup) })));
  }
  return marks;
}

// --- card 3: what limits the last run ----------------------------------------------------------------------------------------

function diagnosisCard() {
  ui.diagnosis = make("div", { class: "diagnosis", part: "diagnosis" });
  return make("section", { class: "card", "aria-labelledby": "diagnosis-title" }, make("h2", { id: "diagnosis-title", text: say("why.diagnosis_title") }), ui.diagnosis);
}

function renderDiagnosis() {
  const run = lastRun();
  ui.diagnosis.replaceChildren(...(run ? diagnosed(run) : invitation()));
}

function apply(settings) {
  window.dispatchEvent(new CustomEvent("specviz:apply", { detail: { settings, press: "generate" } }));
}

const action = (text, settings) => make("button", { type: "button", class: "act", text, on: { click: () => apply(settings) } });

function invitation() {
  return [make("p", { class: "lead", text: say("why.no_run") }), action(say("why.make_run"), state.story)];
}

function diagnosed(run) {
  const { figures, diagnosis } = run;
  const [source, outcome] = [figures.speedup === null ? "parts" : "measured", diagnosis.pays ? "pays" : "loses"];
  const verdict = `why.verdict_${source}_${outcome}`;
  return [
    make("p", { class: "meta", text: runName(run) }),
    make("p", { class: "finding", part: "verdict", "data-pays": diagnosis.pays, text: say(verdict, { speedup: times(diagnosis.speedup) }) }),
    make("h3", { text: say("why.steps_title") }), stepBars(run),
    make("p", { class: "finding", part: "limit", "data-limit": diagnosis.limit, text: limitText(diagnosis) }),
    make("h3", { text: say("why.split_title", { ms: ms(figures.seconds) }) }), timeSplit(figures),
    make("h3", { text: say("why.changes_title") }), ...changes(run),
    make("p", { class: "quiet", text: [say(`why.one_${figures.one_source}`, { ms: ms(figures.one) }), ...(diagnosis.formula === null ? [] : [say(diagnosis.with_passes ? "why.forecast_passes" : "why.forecast_one")])].join(" ") }),
  ];
}

function limitText({ limit, gain }) {
  return gain > 1.005 ? `${say(`why.limit_${limit}`)} ${say("why.limit_gain", { gain: two(gain) })}` : say("why.limit_nothing");
}

/** From the ideal down to what came out: each bar is the speedup that one more cause leaves. */
function stepBars({ figures, diagnosis }) {
  const all = diagnosis.steps.filter((step) => step.cause !== "short" || figures.depth < figures.num_draft_tokens - 0.05);
  if (figures.one_source === "round") all.splice(all.findIndex((step) => step.cause === "verify"), 1);
  const values = {
    gamma: figures.num_draft_tokens, depth: two(figures.depth), alpha: two(figures.alpha), cost: two(figures.cost_coefficient), ratio: two(figures.verify / figures.one),
    draft: ms(figures.draft), rest: ms(figures.rest),
  };
  const rows = all.map(({ cause, speedup }) => [cause, say(`why.step_${cause}`, values), speedup]);
  if (figures.speedup !== null) rows.push(["measured", say("why.step_measured"), figures.speedup]);
  const most = Math.max(...rows.map((row) => row[2]));
  return make("ol", { class: "steps", part: "steps" }, ...rows.map(([cause, text, speedup]) => make("li", { "data-cause": cause, "data-limit": cause === diagnosis.limit && diagnosis.gain > 1.005 },
    make("span", { class: "what", text }), make("b", { text: times(speedup) }),
    make("span", { class: "bar", "aria-hidden": "true" }, make("i", { style: `width:${(100 * speedup) / most}%` }), make("s", { style: `left:${100 / most}%` })))));
}

function timeSplit({ draft, verify, rest, seconds }) {
  const parts = [["draft", draft], ["verify", verify], ["rest", rest]];
  return make("div", { part: "split" },
    make("div", { class: "split", "aria-hidden": "true" }, ...parts.map(([name, part]) => make("i", { class: name, style: `width:${(100 * part) / seconds}%` }))),
    make("ul", { class: "legend" }, ...parts.map(([name, part]) => key(`box ${name}`, say(`why.split_${name}`, { percent: percent(part / seconds), ms: ms(part) })))));
}

function changes({ figures, diagnosis }) {
  if (diagnosis.formula === null) return [make("p", { text: say(figures.chain ? "why.no_forecast_short" : "why.no_forecast_tree") })];
  const lines = [];
  if (figures.alpha <= figures.cost_coefficient) lines.push(make("p", { text: say("why.cannot_pay", { alpha: two(figures.alpha), cost: two(figures.cost_coefficient) }) }));
  else if (diagnosis.best_formula < 1) lines.push(make("p", { text: say("why.no_gamma_pays", { speedup: times(diagnosis.best_formula) }) }));
  const said = diagnosis.changes.map(({ what, value, speedup }, i) => {
    const values = { value: what === "gamma" ? value : two(value), speedup: times(speedup), now: times(diagnosis.formula) };
    const item = make("li", { "data-change": what }, make("span", {}, i ? "" : "★ ", say(`why.change_${what}`, values)));
    if (what === "gamma") item.append(" ", action(say("why.run_with", { gamma: value }), { num_draft_tokens: value }));
    return item;
  });
  if (!said.some((item) => item.dataset.change === "gamma") && diagnosis.best_formula >= 1) lines.push(make("p", { text: say("why.gamma_is_good", { gamma: figures.num_draft_tokens, speedup: times(diagnosis.formula) }) }));
  return [...lines, make("ul", { class: "changes", part: "changes" }, ...said)];
}

// --- messages ---------------------------------------------------------------------------------------------------------------

const handlers = {
  why(message) {
    if (message.story) state.story = message.story;
    if (message.phase) Object.assign(state, { phase: message.phase, problem: message.problem ?? "" });
    if (message.passes) state.passes = message.passes;
    else if (message.phase === "preparing") state.passes = null;
    if (message.runs) {
      state.runs = message.runs;
      if (state.runs.length && !state.touched) state.source = "run";
      if (state.source === "run") takeRun();
      renderDiagnosis();
    }
    renderPasses();
    // While passes are timed, the curves that they make stand still: they are complete only at the end.
    if (!BUSY.includes(state.phase) || message.runs) renderTheory();
  },
};

const receive = () => dispatch(props.value, handlers);

shadow.append(make("style", { text: STYLE }), make("div", { class: "view", part: "view" }, passesCard(), theoryCard(), diagnosisCard()));
renderTheory();
watch("value", receive);
if (props.value) receive();
