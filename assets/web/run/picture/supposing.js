// Moves γ and the temperature in the picture of a round, and says what follows.

import { make, setText } from "../../shared/dom.js";
import { GAMMAS, expectedTokens } from "../../shared/formulas.js";
import { briefly, fixed, plainNumber, written } from "../../shared/numbers.js";
import { quoted } from "../../shared/tokens.js";
import { sealedAt } from "../place.js";
import { flippedAt, isBlock, isLossy } from "../record/records.js";
import { sentence } from "../record/sentences.js";
import { AS_IT_WAS, isAsItWas, recordedTemperature, roundShown, supposedOf } from "./suppose.js";
import { depthOf, isTree } from "../record/trees.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */
/** @typedef {import("../types.js").Round} Round */

const REST = 250; // ms after the last move before the models are asked

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
  ui.suppose = make("div", { class: "suppose", part: "suppose", role: "group", "aria-label": say("playback.suppose") }, make("span", { class: "quiet", "aria-hidden": "true", text: say("playback.suppose") }), gamma.label, temperature.label, reset);
  Object.assign(ui.suppose, { gamma, temperature, reset, draw, asked: false });
  return ui.suppose;
}

/** @param {View} view @param {number} round @param {object} change */
export function suppose(view, round, change) {
  view.supposed = { ...supposedOf(view, round), ...change, round, exact: null };
  whenAtRest(view);
}

/** Asks for the round as the models have it, one at a time, and not under a slider that is held. @param {View} view */
function workOut(view) {
  const { supposed: what, ui: { suppose: panel, near }, run } = view;
  const host = /** @type {import("../element.js").SpecvizRun} */ (view.host);
  if (panel.asked || !host.share?.settings || !host.finished || view.pair !== run.pair || isAsItWas(what) || what.exact) return;
  if (near.querySelector("[part=what-if]:active")) return whenAtRest(view);
  const { round, gamma, temperature, coins } = what;
  const tokens = [...run.rounds.slice(0, round).flatMap((one) => one?.emitted ?? []), ...run.at(round).drafted.map(({ id }) => id)];
  const answer = (/** @type {import("../../shared/element.js").Message | null} */ message) => {
    panel.asked = false;
    if (view.supposed !== what) return workOut(view);
    if (!message) return;
    run.add({ vocabulary: message.vocabulary, first: null });
    view.supposed = { ...what, exact: message.rounds[0] };
    const moving = view.shadow.activeElement?.matches("[part=what-if]");
    panel.draw();
    if (moving) near.querySelector("[part=what-if]")?.focus();
  };
  panel.asked = true;
  host.tell("specviz-ask-supposed", { settings: host.share.settings, pair: run.pair, what: { round, tokens, gamma, temperature, coins }, answer });
}

/** Asks, once nothing has been moved for a moment. @param {View} view */
export function whenAtRest(view) {
  clearTimeout(view.ui.suppose.resting);
  view.ui.suppose.resting = setTimeout(() => workOut(view), REST);
}

/** Nothing can be moved before the round is over, or while it is being guessed. @param {View} view @param {number} round */
const isMovable = (view, round) => Boolean(view.run.rounds[round]?.drafted.length && !sealedAt(view, { round, index: "next" }) && !view.playback.predicting);

/** The coin of a token as it was flipped; null where none was. @param {Round} round @param {import("../types.js").Index} index */
export const flippedCoin = (round, index) => (index === "next" ? round.next.u : (flippedAt(round, index)?.u ?? null));

/** The coin of a token as it is supposed, where it can be moved, else null. @param {View} view @param {Spot} spot */
export const coinOf = (view, { round, index }) => (isMovable(view, round) ? flippedCoin(roundShown(view, round), index) : null);

/** Sets a coin by hand: from 0 to below 1, rounded; where it lay, nothing is supposed of it. @param {View} view @param {Spot} spot @param {number} value @param {number} [digits] */
export function setCoin(view, { round, index }, value, digits = 3) {
  const u = Number(Math.min(Math.max(0, value), 1 - 10 ** -digits).toFixed(digits));
  const { [index]: _, ...others } = supposedOf(view, round).coins;
  const coin = flippedCoin(view.run.at(round), index);
  suppose(view, round, { coins: coin !== null && u === Number(coin.toFixed(digits)) ? others : { ...others, [index]: u } });
  return u;
}

/** @param {View} view @param {Spot | null} spot */
export function drawSuppose(view, spot) {
  const { ui, run } = view;
  const round = spot && run.rounds[spot.round];
  const open = Boolean(round && isMovable(view, spot.round));
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
  if (what.temperature !== null) said.push(say(`playback.suppose_${what.exact ? "judged" : "ranges"}`, { temperature: what.temperature }));
  const coin = what.coins[spot.index];
  const token = spot.index === "next" ? null : round.drafted[spot.index];
  const told = what.exact && token?.outcome !== "undrafted" ? sentence(run, round, spot.index, true) : null;
  if (told !== null) said.push(said.length ? told : say("playback.suppose_so", { told }));
  else if (token) {
    const bound = token.bound ? say("playback.suppose_bound", { bound: briefly(token.bound) }) : "";
    const outcome = say(`rounds.${token.outcome}`);
    said.push(coin === undefined ? say("playback.suppose_token", { token: quoted(say, token.text), outcome }) : `${say("rounds.what_if_outcome", { u: fixed(coin, 3), outcome })}.`, bound);
  } else said.push(round.next.unknown ? say("playback.suppose_unknown") : say("playback.suppose_next", { token: quoted(say, round.next.text) }));
  return said.filter(Boolean).join(" ");
}
