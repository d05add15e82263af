// The Lossless tab: counts of emitted pairs beside the target's exact law, as they come in, and the verdict on the rule.
//
// The body of a gr.HTML component's js_on_load: `element`, `props` and `watch` are given, `STYLE` (lossless.css) and the
// helpers of dom.js are put in front. Every message holds all that is shown. Model text goes through textContent alone.

const host = element.querySelector(".specviz-lossless");
const shadow = host.attachShadow({ mode: "open" });

const SVG = "http://www.w3.org/2000/svg";
const CHART = { height: 330, left: 46, right: 24, top: 28, bottom: 38 };
const NARROW = 760; // px: below this the chart stands above the bars
const SIGNS = { same: "✓", different: "✗", near: "~", undecided: "–", pending: "" };

const state = { message: null, history: [], width: 0 };

host.specviz = {
  get state() { return state.message?.phase ?? "empty"; },
  get message() { return state.message; },
  get history() { return state.history; },
};

// --- small helpers ----------------------------------------------------------------------------------------------------

const percent = (x) => `${(100 * x).toFixed(1)}\u202f%`;
const grouped = (n) => n.toLocaleString("en").replaceAll(",", "\u202f"); // as the server writes it
const visible = (text) => text.replaceAll(" ", "\u00b7").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// --- skeleton -----------------------------------------------------------------------------------------------------------

const ui = {};

function build() {
  ui.text = make("div", { class: "says", role: "status", part: "status" });
  ui.bar = make("i");
  ui.track = make("div", { class: "track", role: "progressbar", "aria-label": say("lossless.progress"), "aria-valuemin": "0", "aria-valuemax": "100" }, ui.bar);
  ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
  ui.progress = make("section", { class: "card progress hidden" }, ui.text, ui.track, ui.note);
  ui.results = make("div", { class: "results hidden", part: "results" }, verdictCard(), chartCard(), barsCard(), textsCard(), factsCard());
  ui.history = historyCard();
  ui.empty = emptyCard();
  ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, ui.progress, ui.results, ui.empty, ui.history);
  shadow.append(make("style", { text: STYLE }), ui.view);
}

function emptyCard() {
  const step = (number, name) => make("li", {}, make("b", { "aria-hidden": "true", text: String(number) }),
    make("h4", { text: say(`lossless.empty_${name}`) }), make("p", { text: say(`lossless.empty_${name}_text`) }));
  return make("section", { class: "card empty", part: "empty" },
    make("h3", { class: "big", text: say("lossless.empty_title") }),
    make("p", { class: "lead", text: say("lossless.empty_promise") }),
    make("ol", { class: "steps" }, step(1, "law"), step(2, "runs"), step(3, "verdict")),
    make("p", { class: "soft", text: say("lossless.empty_break") }));
}

function verdictCard() {
  ui.sign = make("span", { class: "sign", "aria-hidden": "true" });
  ui.headline = make("h3", { class: "big", part: "headline" });
  ui.sentence = make("p", { class: "lead", part: "sentence" });
  ui.why = make("p", { class: "why", part: "why" });
  ui.asked = make("p", { class: "soft asked", part: "asked" });
  ui.about = make("p", { class: "about" });
  ui.verdict = make("section", { class: "card verdict", part: "verdict", "aria-live": "polite" },
    ui.asked, ui.about, make("div", { class: "spoken" }, ui.sign, make("div", {}, ui.headline, ui.sentence, ui.why)));
  return ui.verdict;
}

function chartCard() {
  ui.svg = draw("svg", { role: "img", "aria-label": say("lossless.chart_label") });
  ui.chart = make("section", { class: "card chart", part: "chart" },
    make("h3", { text: say("lossless.chart_title") }),
    legend(["line", "chart_measured"], ["band", "chart_noise"]),
    make("div", { class: "plot" }, ui.svg),
    make("p", { class: "soft", text: say("lossless.chart_read") }));
  return ui.chart;
}

function barsCard() {
  ui.rows = make("div", { class: "rows", role: "list" });
  ui.bars = make("section", { class: "card bars", part: "bars" },
    make("h3", { text: say("lossless.bars_title") }),
    legend(["exact", "bars_exact"], ["observed", "bars_observed"], ["whisker", "bars_noise"]), ui.rows);
  return ui.bars;
}

function legend(...entries) {
  return make("p", { class: "legend" }, ...entries.map(([kind, key]) => make("span", {}, make("i", { class: `key ${kind}`, "aria-hidden": "true" }), say(`lossless.${key}`))));
}

function textsCard() {
  const lane = (name) => {
    const text = make("p", { class: "text", part: `text-${name}` });
    return [text, make("div", { class: "lane" }, make("h4", { text: say(`lossless.texts_${name}`) }), text)];
  };
  const [plain, plainLane] = lane("plain");
  const [rule, ruleLane] = lane("rule");
  Object.assign(ui, { plain, rule });
  ui.texts = make("section", { class: "card texts" }, plainLane, ruleLane);
  return ui.texts;
}

function factsCard() {
  ui.list = make("dl", { class: "facts" });
  ui.facts = make("section", { class: "card" }, make("h3", { text: say("lossless.facts_title") }), ui.list);
  return ui.facts;
}

function historyCard() {
  const heads = ["rule", "drafter", "runs", "distance", "p", "verdict"];
  ui.tests = make("tbody");
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col", "data-column": name, text: say(`lossless.history_${name}`) })));
  return make("section", { class: "card history hidden", part: "history" }, make("h3", { text: say("lossless.history_title") }),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("lossless.history_title") },
      make("table", {}, make("thead", {}, head), ui.tests)));
}

// --- messages ----------------------------------------------------------------------------------------------------------

const handlers = {
  phase(message) {
    open("running", message.text, message.fraction);
  },
  error(message) {
    open("failed", "", 0);
    ui.empty.classList.toggle("hidden", state.message !== null);
    setText(ui.note, message.text);
    ui.note.classList.remove("hidden");
  },
  trial(message) {
    state.message = message;
    open(message.phase, message.text, message.fraction);
    ui.results.classList.remove("hidden");
    renderVerdict();
    for (const card of [ui.chart, ui.bars, ui.facts]) card.classList.toggle("hidden", Boolean(message.greedy));
    ui.texts.classList.toggle("hidden", !message.greedy);
    if (message.greedy) renderTexts();
    else {
      renderChart();
      renderBars();
      renderFacts();
    }
    if (message.phase !== "running") remember(message);
  },
};

function open(phase, text, fraction) {
  ui.empty.classList.add("hidden");
  ui.progress.classList.remove("hidden");
  ui.note.classList.add("hidden");
  ui.view.dataset.state = phase;
  setText(ui.text, text);
  ui.bar.style.width = `${100 * Math.min(1, fraction)}%`;
  ui.track.setAttribute("aria-valuenow", String(Math.round(100 * fraction)));
}

// --- the verdict ---------------------------------------------------------------------------------------------------------

function renderVerdict() {
  const { verdict, rule_name, drafter, settings, about } = state.message;
  ui.verdict.dataset.verdict = verdict.state;
  setText(ui.sign, SIGNS[verdict.state]);
  setText(ui.headline, verdict.headline);
  setText(ui.sentence, verdict.sentence);
  setText(ui.why, verdict.why);
  ui.asked.replaceChildren(make("b", { text: rule_name }), ` · ${drafter} · ${settings}`);
  setText(ui.about, about);
}

// --- the distance, by number of runs --------------------------------------------------------------------------------------

/** Powers of ten around the values. */
function decades(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

function renderChart() {
  const width = ui.svg.parentElement.clientWidth;
  if (!width) return; // another tab is open: it is drawn once this one has a size
  const { noise, curve, runs, verdict } = state.message;
  const { height, left, right, top, bottom } = CHART;
  const least = Math.min(...noise.map(([, , low]) => low).filter((low) => low > 0), ...curve.map(([, tv]) => tv).filter((tv) => tv > 0), 0.1);
  const floor = decades(least, 1)[0];
  const xs = [noise[0][0], runs].map(Math.log10);
  const x = (n) => left + ((Math.log10(n) - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
  const y = (tv) => top + (Math.log10(1 / Math.max(tv, floor)) / Math.log10(1 / floor)) * (height - top - bottom);
  const path = (points) => points.map(([n, tv], i) => `${i ? "L" : "M"}${x(n).toFixed(1)} ${y(tv).toFixed(1)}`).join("");
  const parts = [];
  for (const tick of decades(floor, 1)) {
    parts.push(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    parts.push(draw("text", { class: "tick", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  for (const tick of decades(noise[0][0], runs).filter((n) => n >= noise[0][0] && n <= runs)) {
    parts.push(draw("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }));
    parts.push(draw("text", { class: "tick", x: x(tick), y: height - bottom + 17, "text-anchor": "middle" }, grouped(tick)));
  }
  parts.push(draw("text", { class: "axis", x: width - right, y: height - 5, "text-anchor": "end" }, say("lossless.chart_x")));
  parts.push(draw("text", { class: "axis", x: 2, y: 14 }, say("lossless.chart_y")));
  const upper = noise.map(([n, , , high]) => [n, high]);
  const lower = noise.map(([n, , low]) => [n, low]).reverse();
  parts.push(draw("path", { class: "band", d: `${path(upper)}${path(lower).replace("M", "L")}Z` }));
  parts.push(draw("path", { class: "mean", d: path(noise) }));
  if (curve.length) {
    parts.push(draw("path", { class: "curve", d: path(curve) }));
    const [n, tv] = curve.at(-1);
    parts.push(draw("circle", { class: "end", cx: x(n), cy: y(tv), r: 4.5 }));
  }
  ui.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  ui.svg.setAttribute("data-verdict", verdict.state);
  ui.svg.replaceChildren(...parts);
}

// --- exact and counted shares ----------------------------------------------------------------------------------------------

function renderBars() {
  const { bars, n } = state.message;
  const widest = Math.max(...bars.filter(({ kind }) => kind === "outcome").map(({ p, share, noise }) => Math.max(p + noise, share))) || 1;
  const at = (value) => `${(100 * Math.min(1, Math.max(0, value) / widest)).toFixed(2)}%`;
  while (ui.rows.children.length > bars.length) ui.rows.lastChild.remove();
  while (ui.rows.children.length < bars.length) ui.rows.append(emptyRow());
  bars.forEach((bar, i) => {
    const row = ui.rows.children[i];
    const [pair, track, figures] = row.children;
    const [exact, observed, whisker] = track.children;
    const name = barName(bar);
    if (pair.title !== name) {
      pair.title = name;
      pair.replaceChildren(...(bar.kind === "outcome" ? bar.texts.map((text) => make("bdi", { text: visible(text) })) : [name]));
    }
    row.dataset.kind = bar.kind;
    row.dataset.off = String(n > 0 && Math.abs(bar.share - bar.p) > bar.noise + 1e-9);
    row.setAttribute("aria-label", say("lossless.bars_row", { pair: name, p: percent(bar.p), share: percent(bar.share) }));
    // Of all the others together there are figures only: beside them no pair's bar could be told from another.
    exact.style.width = at(bar.p);
    observed.style.width = at(bar.share);
    whisker.style.left = at(bar.p - bar.noise);
    whisker.style.width = `calc(${at(bar.p + bar.noise)} - ${at(bar.p - bar.noise)})`;
    whisker.classList.toggle("hidden", !bar.noise);
    setText(figures.children[0], percent(bar.p));
    setText(figures.children[1], n ? percent(bar.share) : "");
  });
}

function emptyRow() {
  return make("div", { class: "row", role: "listitem" }, make("span", { class: "pair" }),
    make("span", { class: "shares" }, make("i", { class: "exact" }), make("i", { class: "observed" }), make("i", { class: "whisker" })),
    make("span", { class: "numbers" }, make("span"), make("span")));
}

function barName({ kind, texts }) {
  if (kind === "outcome") return texts.map(visible).join(" ");
  return kind === "others" ? say("lossless.bars_others", { n: Number(texts[0]) }) : say("lossless.bars_outside");
}

// --- figures, texts, history --------------------------------------------------------------------------------------------

function renderFacts() {
  ui.list.replaceChildren(...state.message.facts.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]));
}

function renderTexts() {
  const { plain, rule, parting } = state.message.greedy;
  const words = (tokens) => tokens.map((text, i) => (i === parting ? make("mark", { text: text.replaceAll("\n", "⏎") }) : text));
  ui.plain.replaceChildren(...words(plain));
  ui.rule.replaceChildren(...words(rule));
}

function remember(message) {
  if (message.verdict.state === "pending" || state.history.some(({ trial }) => trial === message.trial)) return;
  state.history.push(message);
  const { rule_name, drafter, n, distance, p_value, verdict, greedy } = message;
  const cells = [drafter, greedy ? say("lossless.history_tokens", { n }) : grouped(n), figure(distance, (tv) => tv.toFixed(3)), figure(p_value, pText)];
  ui.tests.prepend(make("tr", { "data-verdict": verdict.state }, make("th", { scope: "row", text: rule_name }),
    ...cells.map((text) => make("td", { text })), make("td", { class: "short", text: say(`lossless.short_${verdict.state}`) })));
  ui.history.classList.toggle("hidden", false);
}

/** A dash where there is no such figure, as at temperature 0. */
const figure = (value, format) => (typeof value === "number" ? format(value) : "–");
const pText = (p) => (p < 1e-300 ? "< 1e-300" : p >= 0.1 ? p.toFixed(2) : p.toExponential(0).replace("e-", "e−"));

// --- start ----------------------------------------------------------------------------------------------------------------

build();
new ResizeObserver(([entry]) => {
  const width = Math.round(entry.contentRect.width);
  if (width === state.width) return;
  state.width = width;
  ui.view.dataset.layout = width < NARROW ? "narrow" : "wide";
  if (state.message && !state.message.greedy) renderChart();
}).observe(ui.view);
watch("value", () => dispatch(props.value, handlers));
