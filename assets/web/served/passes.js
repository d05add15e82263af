// What became of the passes and of each draft position, and what nobody can know of it.

import { make, setText, svg } from "../shared/dom.js";
import { canvas, frame, key, path } from "../shared/frame.js";
import { written } from "../shared/numbers.js";
import { percent, two } from "../why/figures.js";

/** @typedef {import("./element.js").Host} Host */

/** @param {Host} host */
export function passesPart(host) {
  const { ui, say } = host;
  ui.summary = make("p", { class: "finding", part: "summary" });
  ui.readout = make("dl", { class: "readout", part: "readout" });
  ui.notes = make("ul", { class: "notes quiet", part: "notes" });
  ui.left_out = make("div", { class: "quiet", part: "left-out" });
  ui.positions = canvas("positions", (width) => drawPositions(host, width));
  ui.tokens = canvas("tokens", (width) => drawTokens(host, width));
  ui.table = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("served.by_position") });
  ui.by_position = make("section", {}, make("h3", { text: say("served.by_position") }), ui.positions.box,
    make("ul", { class: "legend" }, key("box kept", say("served.key_conditional")), key("q line", say("served.key_share"))));
  ui.by_tokens = make("section", {}, make("h3", { text: say("served.by_tokens") }), ui.tokens.box);
  ui.numbers = make("details", { part: "numbers" }, make("summary", { text: say("served.numbers") }), ui.table);
  return make("div", {}, ui.summary, ui.readout, ui.notes, ui.left_out, make("div", { class: "two" }, ui.by_position, ui.by_tokens), ui.numbers);
}

/** @param {Host} host @param {any} figures */
export function renderPasses({ ui, say }, figures) {
  const requests = [figures.requests && say("served.requests", { n: figures.requests }), figures.summaries && say("served.summaries", { n: figures.summaries })].filter(Boolean).join(", ");
  setText(ui.summary, say(figures.passes === null ? "served.summary_bare" : "served.summary", { servers: figures.servers.join(", "), requests, passes: figures.passes }));
  const bare = figures.tokens_per_pass === null && figures.answer_tokens_per_pass !== null;
  const shown = [[bare ? "answer_tokens" : "tokens", bare ? two(figures.answer_tokens_per_pass) : null, figures.tokens_per_pass],
    ["alpha", figures.alpha_between && figures.alpha_between.map(two).join(" – "), figures.alpha], ["share", null, figures.acceptance_share],
    ...(figures.load ? [["load", loads(figures.load), null]] : [])];
  ui.readout.replaceChildren(...shown.map(([name, text, value]) => make("div", { "data-figure": name },
    make("dt", { text: say(`served.figure_${name}`) }), make("dd", { text: text ?? (value === null ? say("why.not_known") : two(value)) }))));
  const notes = [figures.unknown && say("served.note_lengths", { n: figures.unknown }), figures.nominal && say("served.note_nominal"),
    figures.servers.some((/** @type {string} */ name) => name.startsWith("vLLM")) && say("served.note_vllm"), bare && say("served.note_answer"),
    figures.rounded && say("served.note_rounded", { n: figures.rounded }), figures.uncounted && say("served.note_uncounted", { n: figures.uncounted }), figures.without && say("served.note_without", { n: figures.without }),
    figures.speedups.length && say("served.note_speedups", { speedups: figures.speedups.map((/** @type {number[]} */ [load, speedup]) => say("served.speedup_at", { load, speedup })).join("; ") })];
  ui.notes.replaceChildren(...notes.filter(Boolean).map((text) => make("li", { text })));
  renderLeftOut(ui, say, figures);
  for (const one of [ui.by_position, ui.numbers]) one.classList.toggle("hidden", !figures.positions.length);
  ui.by_tokens.classList.toggle("hidden", !figures.tokens.length);
  ui.positions.redraw();
  ui.tokens.redraw();
  ui.table.replaceChildren(numbersTable(say, figures.positions));
}

/** Requests at once: on average, and the least and the most if there are several. @param {number[]} load */
function loads([least, mean, most]) {
  const [low, middle, high] = [least, mean, most].map((value) => written(String(Math.round(10 * value) / 10)));
  return least === most ? middle : `${middle} (${low} – ${high})`;
}

/** What could not be read, and why. @param {Record<string, any>} ui @param {import("../shared/words.js").Say} say @param {any} figures */
function renderLeftOut(ui, say, { left_out: count, reasons }) {
  ui.left_out.classList.toggle("hidden", !count);
  if (!count) return;
  const more = count > reasons.length ? [say("served.left_out_more", { n: count - reasons.length })] : [];
  ui.left_out.replaceChildren(make("p", { text: say("served.left_out", { n: count }) }),
    make("ul", { class: "notes" }, ...[...reasons, ...more].map((text) => make("li", { text }))));
}

/** @param {import("../shared/words.js").Say} say @param {any[]} positions */
function numbersTable(say, positions) {
  const head = ["served.axis_position", "served.key_share", "served.key_conditional", "served.judged"].map((name) => make("th", { scope: "col", text: say(name) }));
  const rows = positions.map(({ share, conditional, judged }, i) => make("tr", {}, make("th", { scope: "row", text: i + 1 }),
    ...[share, conditional].map((value) => make("td", { text: value === null ? say("why.not_known") : two(value) })), make("td", { text: judged ?? say("why.not_known") })));
  return make("table", { part: "table" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

/** Places of `count` columns, a tick for at most nine of them. @param {number} count @param {number} first what stands below the first */
function columns(count, first) {
  const step = Math.ceil(count / 9);
  const ticks = Array.from({ length: count }, (_, i) => i + first).filter((value) => (value - first) % step === 0);
  return { x: (value) => (value - first + 0.5) / count, ticks };
}

/** @param {any} chart @param {number} count @param {number} at @param {number} height @param {string} title */
function bar(chart, count, at, height, title) {
  const [x, wide] = [chart.x(at), (0.7 * (chart.right - chart.left)) / count];
  const top = chart.y(height);
  return svg("rect", { class: "bar", x: x - wide / 2, y: top, width: wide, height: chart.bottom - top }, svg("title", {}, title));
}

/** @param {Host} host @param {number} width */
function drawPositions({ say, state }, width) {
  const { positions } = state.figures;
  const count = Math.max(1, positions.length);
  const chart = frame(width, { name: say("served.by_position"), ...columns(count, 1), y: (share) => share / 1.05, most: 1, xName: say("served.axis_position"), yName: "", tickText: two });
  positions.forEach(({ conditional, judged }, i) => conditional !== null && chart.node.append(
    bar(chart, count, i + 1, conditional, say("served.point_conditional", { position: i + 1, rate: percent(conditional), judged }))));
  const dots = positions.map(({ share }, i) => [chart.x(i + 1), chart.y(share)]);
  if (dots.length) chart.node.append(path(dots, { class: "line q" }));
  dots.forEach(([cx, cy], i) => chart.node.append(svg("circle", { class: "dot q", cx, cy, r: 4 }, svg("title", {}, say("served.point_share", { position: i + 1, rate: percent(positions[i].share) })))));
  return chart.node;
}

/** @param {Host} host @param {number} width */
function drawTokens({ say, state }, width) {
  const { tokens } = state.figures;
  const count = Math.max(1, tokens.length);
  const most = Math.max(0.1, ...tokens);
  const chart = frame(width, { name: say("served.by_tokens"), ...columns(count, 1), y: (share) => share / most / 1.05, most, xName: say("served.axis_tokens"), yName: say("served.axis_passes"), tickText: two });
  tokens.forEach((share, i) => chart.node.append(bar(chart, count, i + 1, share, say("served.point_tokens", { n: i + 1, share: percent(share) }))));
  return chart.node;
}
