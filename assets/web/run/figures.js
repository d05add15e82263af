// The headline figures.

import { make, setText } from "../shared/dom.js";
import { fixed, rate } from "../shared/numbers.js";
import { speedupVerdict } from "../shared/verdict.js";
import { figuresHere } from "./place.js";

/** @typedef {import("./view.js").View} View */

/** @type {[string, (x: number) => string][]} */
const FIGURES = [
  ["acceptance_length", (x) => fixed(x, 2)],
  ["acceptance_rate", (x) => `${Math.round(100 * x)}\u202f%`],
  ["speedup", (x) => `${fixed(x, 2)}×`],
  ["tokens_per_second", rate],
];

/** Four figures in a row. @param {View} view */
export function figuresBar(view) {
  view.ui.figures = {};
  const figures = make("div", { class: "figures", part: "figures", role: "group", "aria-label": view.say("rounds.figures") });
  for (const [name] of FIGURES) {
    view.ui.figures[name] = make("b", { "data-figure": name, text: "—" });
    figures.append(make("div", { class: "figure" }, view.ui.figures[name], ...labels(view, name)));
  }
  // Where the interval of the speedup stands, once it is measured.
  view.ui.between = ["long", "brief"].map((length) => make("span", { class: `${length} between`, part: `speedup-interval-${length}` }));
  view.ui.figures.speedup.parentElement?.append(...view.ui.between);
  return (view.ui.top = make("div", { class: "top" }, figures));
}

/** @param {View} view @param {string} name */
const labels = (view, name) => [make("span", { class: "long", text: view.say(`rounds.figure_${name}`) }),
  make("span", { class: "brief", text: view.say(`rounds.figure_${name}_brief`) })];

const OF_PLACE = ["acceptance_length", "acceptance_rate"];

/** @param {View} view */
export function drawFigures(view) {
  const here = figuresHere(view);
  for (const [name, format] of FIGURES) {
    const value = here[name];
    setText(view.ui.figures[name], typeof value === "number" ? format(value) : "—");
  }
  const { speedup, speedup_low: low, speedup_high: high } = here;
  const { open, text } = speedupVerdict(view.say, speedup, low, high);
  setText(view.ui.figures.speedup, open ? view.say(`rounds.speedup_${open}`) : text);
  view.ui.figures.speedup.toggleAttribute("data-words", Boolean(open));
  view.ui.figures.speedup.title = open ? text : ""; // it says what to do
  const ends = typeof low === "number" && typeof high === "number" ? { low: fixed(low, 2), high: fixed(high, 2) } : null;
  ["between", "between_brief"].forEach((key, i) => setText(view.ui.between[i], ends ? view.say(`rounds.figure_speedup_${key}`, ends) : ""));
}

/** Says beside each figure what it is of, while that is not plain. @param {View} view */
export function markFigures(view) {
  for (const [name, node] of /** @type {[string, any][]} */ (Object.entries(view.ui.figures))) {
    const scope = OF_PLACE.includes(name) ? "playback.so_far" : view.run.phase === "running" ? "playback.live_figure" : "playback.whole_run";
    if (view.playback.at) node.parentNode.dataset.scope = view.say(scope);
    else delete node.parentNode.dataset.scope;
  }
}
