// Moves γ and the temperature in the picture of a round, and says what follows.

import { make, setText } from "../shared/dom.js";
import { GAMMAS, expectedTokens } from "../shared/formulas.js";
import { briefly, fixed, plainNumber, written } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";
import { sealedAt } from "./place.js";
import { isBlock, isLossy } from "./records.js";
import { AS_IT_WAS, recordedTemperature, roundShown, supposedOf } from "./suppose.js";
import { depthOf, isTree } from "./trees.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Spot} Spot */

/** @param {View} view @param {() => void} draw what is supposed */
export function supposePanel(view, draw) {
  const { say, ui } = view;
  const slider = (/** @type {"gamma" | "temperature"} */ name, /** @type {object} */ bounds) => {
    const told = make("output");
    const input = make("input", { type: "range", part: `suppose-${name}`, ...bounds, on: { input: () => {
      suppose(view, ui.supposing, { [name]: Number(input.value) });
      draw();
    } } });
    return { input, told, label: make("label", {}, make("span", { text: say(`playback.suppose_${name}`) }), input, told) };
  };
  const gamma = slider("gamma", { min: 0, max: GAMMAS.length - 1, step: 1 });
  const temperature = slider("temperature", { min: 0.1, max: 1.5, step: 0.05 });
  const reset = make("button", { type: "button", class: "go", part: "suppose-reset", text: say("playback.suppose_reset"), on: { click: () => {
    view.supposed = AS_IT_WAS;
    draw();
  } } });
  ui.suppose = make("div", { class: "suppose", part: "suppose", role: "group", "aria-label": say("playback.suppose") }, gamma.label, temperature.label, reset);
  Object.assign(ui.suppose, { gamma, temperature, reset });
  return ui.suppose;
}

/** @param {View} view @param {number} round @param {object} change */
export function suppose(view, round, change) {
  view.supposed = { ...supposedOf(view, round), ...change, round };
}

/** What can be moved now: nothing before the round is over, or while it is being guessed. @param {View} view @param {Spot | null} spot */
export function drawSuppose(view, spot) {
  const { ui, run } = view;
  const round = spot && run.rounds[spot.round];
  const open = Boolean(round && round.drafted.length && !sealedAt(view, { round: spot.round, index: "next" }) && !view.playback.predicting);
  ui.suppose.toggleAttribute("data-closed", !open);
  if (!open || !round) return;
  ui.supposing = spot.round;
  const what = supposedOf(view, spot.round);
  const known = isLossy(round) ? null : recordedTemperature(run);
  const { gamma, temperature, reset } = ui.suppose;
  gamma.input.value = what.gamma ?? Math.max(...round.drafted.map((_, index) => depthOf(round, index)));
  setText(gamma.told, gamma.input.value);
  temperature.label.classList.toggle("hidden", known === null);
  temperature.input.value = what.temperature ?? (run.start.greedy ? 0 : known ?? 0);
  setText(temperature.told, written(String(what.temperature ?? (run.start.greedy ? 0 : known))));
  reset.disabled = what.round < 0;
}

/** What follows for the token that is looked at, and for the round; null where nothing is supposed. @param {View} view @param {Spot} spot */
export function saySupposed(view, spot) {
  const { run, say } = view;
  const what = supposedOf(view, spot.round);
  if (what.round < 0) return null;
  const round = roundShown(view, spot.round);
  const said = [];
  const rate = run.figures.acceptance_rate;
  if (what.gamma !== null && typeof rate === "number" && !isTree(round) && !isBlock(run) && !isLossy(round)) {
    said.push(say("playback.suppose_expected", { gamma: what.gamma, tokens: fixed(expectedTokens(rate, what.gamma), 2), rate: plainNumber(rate) }));
  }
  if (what.temperature !== null) said.push(say("playback.suppose_ranges", { temperature: what.temperature }));
  const token = spot.index === "next" ? null : round.drafted[spot.index];
  if (token) {
    const bound = token.bound ? say("playback.suppose_bound", { bound: briefly(token.bound) }) : "";
    said.push([say("playback.suppose_token", { token: quoted(say, token.text), outcome: say(`rounds.${token.outcome}`) }), bound].filter(Boolean).join(" "));
  } else said.push(round.next.unknown ? say("playback.suppose_unknown") : say("playback.suppose_next", { token: quoted(say, round.next.text) }));
  return said.join(" ");
}
