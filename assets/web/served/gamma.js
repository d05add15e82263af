// Which γ would have been best, at a c and a price of verifying that only the server's owner knows.

import { make, setText, svg } from "../shared/dom.js";
import { canvas, caption, frame, key, path, tick } from "../shared/frame.js";
import { times, two } from "../why/figures.js";
import { expectedSpeedup } from "../shared/formulas.js";

/** @typedef {import("./element.js").Host} Host */

/** The longest draft that the formula is drawn for. */
const REACH = 16;

/** @param {Host} host */
export function gammaPart(host) {
  const { ui, say } = host;
  ui.speed = canvas("speed", (width) => drawSpeed(host, width));
  ui.best = make("p", { class: "finding", part: "best" });
  ui.ratioLabel = make("label", { for: "ratio" });
  ui.inputs = make("div", { class: "inputs" },
    make("label", { for: "cost", text: say("served.cost") }), number(host, "cost", 0),
    ui.ratioLabel, number(host, "ratio", 0.01));
  ui.gamma = make("section", { part: "gamma" }, make("h3", { text: say("served.best_title") }),
    make("p", { class: "quiet", text: say("served.best_lead") }), ui.inputs, ui.best, ui.speed.box,
    make("ul", { class: "legend" }, key("p line", say("served.key_counted")), key("ink dashed", say("served.key_formula"))));
  return ui.gamma;
}

/** @param {Host} host @param {"cost" | "ratio"} name @param {number} least */
function number(host, name, least) {
  const onInput = () => {
    const value = input.valueAsNumber;
    const fine = Number.isFinite(value) && value >= least;
    input.setAttribute("aria-invalid", String(!fine));
    if (!fine) return;
    host.state[name] = value;
    renderGamma(host, host.state.figures);
  };
  const input = make("input", { type: "number", id: name, part: name, min: least, step: "any", value: host.state[name], inputmode: "decimal", on: { input: onInput } });
  return input;
}

/** @param {Host} host @param {any} figures */
export function renderGamma(host, figures) {
  const { ui, say, state } = host;
  ui.gamma.classList.toggle("hidden", figures.alpha === null);
  if (figures.alpha === null) return;
  setText(ui.ratioLabel, say("served.ratio", { k: longest(figures) + 1 }));
  const counted = best(countedSpeeds(state));
  const formula = best(formulaSpeeds(state));
  setText(ui.best, `${verdict(say, "counted", counted, longest(figures))} ${verdict(say, "formula", formula, REACH)}`);
  ui.speed.redraw();
}

/** @param {import("../shared/words.js").Say} say @param {string} way @param {{ gamma: number, speed: number }} found @param {number} reach */
const verdict = (say, way, { gamma, speed }, reach) =>
  say(gamma ? `served.best_${way}` : `served.none_${way}`, { gamma, speedup: times(speed), reach });

/** The deepest position that was drafted. @param {any} figures */
const longest = (figures) => Math.max(1, figures.positions.filter((one) => one.judged !== null).length);

/** T(γ+1)/T(1) on the straight line through 1 and what its reader says of the longest draft. @param {any} state @param {number} gamma */
const verification = (state, gamma) => Math.max(0.01, 1 + ((state.ratio - 1) * gamma) / longest(state.figures));

/**
 * The speed at each γ by what was counted: a pass makes 1 + S(1) + … + S(γ) tokens, S(d) being the product of the
 * conditional rates down to d. Nothing is known beyond the depth that was drafted.
 *
 * @param {any} state
 * @returns {number[]}
 */
function countedSpeeds(state) {
  const speeds = [1 / verification(state, 0)];
  let [survived, tokens] = [1, 1];
  for (const { conditional } of state.figures.positions) {
    if (conditional === null) break;
    survived *= conditional;
    tokens += survived;
    const gamma = speeds.length;
    speeds.push(tokens / (gamma * state.cost + verification(state, gamma)));
  }
  return speeds;
}

/** @param {any} state @returns {number[]} */
const formulaSpeeds = (state) =>
  Array.from({ length: REACH + 1 }, (_, gamma) => expectedSpeedup(state.figures.alpha, gamma, state.cost, verification(state, gamma)));

/** @param {number[]} speeds by γ */
function best(speeds) {
  const speed = Math.max(...speeds);
  return { gamma: speeds.indexOf(speed), speed };
}

/** @param {Host} host @param {number} width */
function drawSpeed({ say, state }, width) {
  const [counted, formula] = [countedSpeeds(state), formulaSpeeds(state)];
  const reach = Math.max(REACH, counted.length - 1);
  const most = 1.1 * Math.max(1.2, ...counted, ...formula);
  const step = Math.ceil(reach / 8);
  const ticks = Array.from({ length: Math.floor(reach / step) + 1 }, (_, i) => i * step);
  const chart = frame(width, { name: say("served.best_title"), x: (gamma) => 0.02 + (0.96 * gamma) / reach, y: (value) => value / most, ticks, most, xName: say("why.axis_gamma"), yName: say("why.axis_times"), tickText: tick });
  chart.node.append(svg("rect", { class: "slower", x: chart.left, y: chart.y(1), width: chart.right - chart.left, height: chart.bottom - chart.y(1) }),
    caption(chart.right - 6, chart.bottom - 6, say("why.slower"), { "text-anchor": "end", class: "no" }),
    path([[chart.left, chart.y(1)], [chart.right, chart.y(1)]], { class: "flat" }));
  const at = (speed, gamma) => [chart.x(gamma), chart.y(speed)];
  chart.node.append(path(formula.map(at), { class: "line ink dashed" }), path(counted.map(at), { class: "line p" }));
  counted.forEach((speed, gamma) => {
    const [cx, cy] = at(speed, gamma);
    chart.node.append(svg("circle", { class: "mark p", cx, cy, r: 3.5 }, svg("title", {}, say("served.point_speed", { gamma, speedup: two(speed) }))));
  });
  return chart.node;
}
