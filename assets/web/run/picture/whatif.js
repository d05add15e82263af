// What if a coin had fallen otherwise? Sets it by hand, in a close-up, and asks for the run that goes on from there.
//
// Everything before the coin stays as it was, and so do all other coins (specviz/records/settings.py). Somebody must be there
// to start runs: whoever is cancels the event `specviz-can-press`.

import { make } from "../../shared/dom.js";
import { fixed } from "../../shared/numbers.js";
import { quoted, showToken } from "../../shared/tokens.js";
import { evidence } from "./evidence.js";
import { isBlock, isPlaced, tokenText } from "../record/records.js";
import { supposedOf } from "./suppose.js";
import { flippedCoin, setCoin } from "./supposing.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */
/** @typedef {import("../types.js").Round} Round */

const DIGITS = 6; // as many as the line's pieces are recorded with

/** @param {View} view @param {Spot} spot @returns {Node[]} */
export function whatIf(view, spot) {
  const { index } = spot;
  const round = view.run.at(spot.round);
  const coin = flippedCoin(round, index);
  if (coin === null) return [];
  const was = outcomeOf(view, spot, coin);
  let u = supposedOf(view, spot.round).coins[index] ?? coin;
  const told = make("output", { part: "what-if-outcome" });
  const slider = make("input", { type: "range", min: 0, max: 1, step: "any", value: u, part: "what-if",
    "aria-label": view.say("rounds.what_if_coin"), on: { input: () => set(Number(slider.value), 3) } });
  const ways = goOn(view, spot, () => u);
  const tell = (/** @type {number} */ digits) => {
    const outcome = outcomeOf(view, spot, u);
    for (const go of ways.filter((node) => node.matches("button"))) go.disabled = outcome === was;
    told.textContent = view.say(outcome === was ? "rounds.what_if_same" : "rounds.what_if_outcome", { u: fixed(u, digits), outcome });
  };
  const set = (/** @type {number} */ value, /** @type {number} */ digits) => {
    u = setCoin(view, spot, value, digits);
    slider.value = String(u);
    tell(digits);
    for (const picture of evidence(view, spot).coin) view.ui.near.querySelector("[part=coin]")?.replaceWith(picture);
  };
  tell(3);
  const others = index === "next" ? tokensOf(view, round, (value) => set(value, DIGITS)) : [];
  return [make("h4", { text: view.say("rounds.what_if") }), ...others, make("div", { class: "what-if" }, slider, told, ...ways)];
}

/** The run that goes on from there, where it can be had: a button, or why there is none. @param {View} view @param {Spot} spot @param {() => number} coin @returns {any[]} */
function goOn(view, spot, coin) {
  const { share } = /** @type {import("../element.js").SpecvizRun} */ (view.host);
  if (!share?.settings || view.run.phase !== "finished" || !somebodyPresses()) return [];
  if (share.settings.num_draft_tokens === "auto") return [make("p", { class: "raw", text: view.say("rounds.what_if_auto") })];
  return [make("button", { type: "button", class: "go", part: "branch", text: view.say("rounds.what_if_go"), on: { click: () => branch(view, spot, coin()) } })];
}

/** Whether somebody is there to start a run: a page that only shows runs has nobody. */
const somebodyPresses = () => !document.dispatchEvent(new CustomEvent("specviz-can-press", { cancelable: true }));

/** A button for each listed token that could have been drawn instead. @param {View} view @param {Round} round @param {(u: number) => void} set */
function tokensOf(view, { next }, set) {
  if (!isPlaced(next)) return [];
  const others = (next.line ?? []).filter(([id, start, end]) => id !== next.id && end - start > 4 * 10 ** -DIGITS);
  if (!others.length) return [];
  const buttons = others.map(([id, start, end]) => showToken(view.say,
    make("button", { type: "button", class: "other", part: "other", on: { click: () => set((start + end) / 2) } }), tokenText(view.run, id)));
  return [make("div", { class: "others" }, make("span", { text: view.say("rounds.what_if_token") }), ...buttons)];
}

/** What a coin would say. @param {View} view @param {Spot} spot @param {number} u */
function outcomeOf(view, { round: number, index }, u) {
  const round = view.run.at(number);
  if (index !== "next") {
    const below = u < (round.drafted[index].accept_prob ?? 0);
    return view.say(isBlock(view.run) ? (below ? "rounds.what_if_below" : "rounds.what_if_above") : below ? "rounds.accepted" : "rounds.rejected");
  }
  const { exact, coins } = supposedOf(view, number);
  if (exact && coins.next === u) return quoted(view.say, exact.next.text);
  const piece = (round.next.line ?? []).find(([, start, end]) => u >= start && u < end);
  return piece ? quoted(view.say, tokenText(view.run, piece[0])) : view.say("rounds.what_if_other");
}

/** @param {View} view @param {Spot} spot @param {number} u */
function branch(view, spot, u) {
  const host = /** @type {import("../element.js").SpecvizRun} */ (view.host);
  const { settings, pair } = host.share;
  const place = `${spot.round + 1}.${spot.index === "next" ? "next" : spot.index + 1}`;
  const others = settings.coins.split(" ").filter((/** @type {string} */ coin) => coin && !coin.startsWith(`${place}=`));
  host.tell("specviz-branch", spot);
  host.tell("specviz-press", { settings: { ...settings, coins: [...others, `${place}=${u}`].join(" ") }, press: "generate", pair });
}
