// The sliders of what decides the speedup. One value may stand in two cards: it is the same wherever it is moved.

import { make, setText } from "../shared/dom.js";
import { two } from "./figures.js";

/** @typedef {import("./state.js").Lab} Lab */

const SLIDERS = {
  alpha: { sign: "α", most: 1, least: 0, step: 0.01 },
  cost: { sign: "c", most: 1, least: 0, step: 0.01 },
  gamma: { sign: "γ", most: 16, least: 1, step: 1 },
};

/**
 * A slider that says its value; `any` step lets it hold a run's exact figure, what is set by hand is rounded.
 *
 * @param {Lab} lab @param {"alpha" | "cost" | "gamma"} name @param {string} id
 */
export function sliderRow(lab, name, id) {
  const { sign, least, most, step } = SLIDERS[name];
  const output = make("output", { for: id });
  const onInput = () => set(lab, { [name]: Number((Math.round(Number(input.value) / step) * step).toFixed(2)) });
  const input = make("input", { type: "range", id, min: least, max: most, step: step < 1 ? "any" : step, "data-slider": name, on: { input: onInput, keydown: onKey } });
  function onKey(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by || step >= 1) return;
    event.preventDefault();
    set(lab, { [name]: Number(Math.min(most, Math.max(least, lab.state[name] + by * step)).toFixed(2)) });
  }
  lab.ui.sliders.push({ name, most, input, output });
  return make("div", { class: "slider" }, make("label", { for: id }, make("b", { text: sign }), ` ${lab.say(`why.slider_${name}`)}`), output, input);
}

/** @param {Lab} lab @param {Record<string, any>} values */
function set(lab, values) {
  Object.assign(lab.state, values, { source: "own", touched: true });
  lab.reckon();
}

/** @param {Lab} lab */
export function renderSliders(lab) {
  for (const { name, most, input, output } of lab.ui.sliders) {
    input.max = String(Math.max(most, lab.state[name])); // a run's figures stand as they are
    input.value = lab.state[name];
    setText(output, name === "gamma" ? String(lab.state.gamma) : two(lab.state[name]));
    input.setAttribute("aria-valuetext", output.textContent);
  }
}
