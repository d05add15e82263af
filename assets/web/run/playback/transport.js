// The bar below the text: buttons, slider, and where the reader is.

import { make, setText } from "../../shared/dom.js";
import { momentParts } from "../../moment/moment.js";
import { written } from "../../shared/numbers.js";
import { markFigures } from "../figures.js";
import { roundScene } from "../picture/still.js";
import { placeLabel, placeRounds } from "../place.js";
import { predictionPanel } from "./predict.js";
import { slowness } from "./showing.js";
import { drawStrip, stripBox } from "./strip.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../view.js").Actions} Actions */

const SPEEDS = [0.5, 1, 2, 4, 8];

const UNITS = ["token", "decision", "round"];

/** @param {string} name */
export const icon = (name) => make("span", { class: `icon ${name}`, "aria-hidden": "true" });

/** @param {View} view @param {Actions} actions */
export function transportCard(view, actions) {
  const button = (name, click, keys, ...sign) => make("button", { type: "button", class: `go ${name}`, part: name,
    "aria-label": view.say(`playback.${name}`), title: view.say(`playback.${name}`), "aria-keyshortcuts": keys, on: { click } }, ...sign);
  view.ui.toStart = button("to_start", actions.goToStart, "Home", icon("start"));
  view.ui.back = button("back", () => actions.step(-1), "ArrowLeft", icon("back"));
  view.ui.play = button("play", actions.togglePlay, "Space");
  view.ui.forward = button("forward", () => actions.step(1), "ArrowRight", icon("forward"));
  view.ui.toEnd = make("button", { type: "button", class: "go live", part: "to_end", "aria-keyshortcuts": "End", on: { click: () => (view.ui.toEnd.dataset.live === "again" ? actions.watchAgain() : actions.goToEnd()) } });
  view.ui.scrub = make("input", { class: "scrub", type: "range", part: "scrub", min: "0", max: "0", step: "1", value: "0",
    "aria-label": view.say("playback.scrub"), on: { input: () => actions.goToRound(Number(view.ui.scrub.value)) } });
  view.ui.place = make("span", { class: "place", part: "place", "aria-live": "polite" });
  view.ui.present = make("button", { type: "button", class: "go present", part: "present", "aria-keyshortcuts": "p", text: view.say("playback.present"), on: { click: actions.openPresentation } });
  const moment = momentParts(view.say, view.host, (sheet) => roundScene(view, sheet), "go");
  const prediction = predictionPanel(view, actions, view.ui.forward);
  const { wall } = view.ui.prediction;
  view.ui.choices = make("div", { class: "choices" }, prediction.toggle, ...choices(view), wall.button, wall.panel);
  view.ui.transport = make("div", { class: "card transport", part: "transport", role: "group", tabindex: "-1", "aria-label": view.say("playback.bar") },
    stripBox(view), make("div", { class: "buttons" }, view.ui.toStart, view.ui.back, view.ui.play, view.ui.forward), view.ui.toEnd, view.ui.place, view.ui.choices, view.ui.present, ...moment, prediction.box);
  // A button that was clicked gives the focus away: then Space plays, and does not press it once more.
  view.ui.transport.addEventListener("click", (/** @type {any} */ event) => event.detail && event.target.closest("button") && view.ui.transport.focus({ preventScroll: true }), true);
  return view.ui.transport;
}

/** How far a step goes, and how fast it plays. @param {View} view */
function choices(view) {
  const units = UNITS.map((unit) => make("option", { value: unit, text: view.say(`playback.unit_${unit}`) }));
  const speeds = SPEEDS.map((speed) => make("option", { value: speed, selected: speed === 1, text: `${written(String(speed))}×` }));
  const choice = (/** @type {string} */ name, /** @type {HTMLOptionElement[]} */ options, /** @type {(value: string) => string | number} */ read) => {
    const node = make("select", { part: name, "aria-label": view.say(`playback.${name}`), on: { change: () => Object.assign(view.playback, { [name]: read(node.value) }) } }, ...options);
    return node;
  };
  return [choice("unit", units, String), choice("speed", speeds, Number)];
}

/** @param {View} view */
export function drawTransport(view) {
  const count = view.drawn;
  const live = view.run.phase === "running";
  const { at, showing, playing, asking } = view.playback;
  const following = at === null;
  view.ui.view.toggleAttribute("data-placed", !following);
  view.ui.view.toggleAttribute("data-showing", showing);
  view.ui.view.toggleAttribute("data-predicting", view.playback.predicting);
  view.ui.scrub.disabled = !count;
  // Not `disabled`: a button that was just pressed would lose the focus.
  for (const node of [view.ui.toStart, view.ui.back, view.ui.play, view.ui.present]) node.setAttribute("aria-disabled", String(!count));
  view.ui.forward.setAttribute("aria-disabled", String(!count || following));
  view.ui.toEnd.setAttribute("aria-disabled", String(!count));
  if (asking) for (const node of [view.ui.play, view.ui.forward]) node.setAttribute("aria-disabled", "true");
  const moving = playing || (following && live);
  view.ui.play.dataset.icon = moving ? "pause" : "play";
  view.ui.play.setAttribute("aria-label", view.say(moving ? "playback.pause" : "playback.play"));
  view.ui.play.title = view.say(moving ? "playback.pause" : "playback.play");
  view.ui.scrub.max = count;
  view.ui.scrub.value = at ? placeRounds(view) : count;
  drawStrip(view);
  const end = live ? (following ? "on" : showing ? "skip" : "behind") : following ? "again" : showing ? "skip" : "over";
  view.ui.toEnd.dataset.live = end;
  setText(view.ui.toEnd, view.say(`playback.end_${end}`));
  const times = showing ? slowness(view) : null;
  setText(view.ui.slowed, times ? view.say("playback.slowed", { times: written(String(Number(times.toPrecision(2)))) }) : "");
  const label = placeLabel(view);
  setText(view.ui.place, label);
  view.ui.scrub.setAttribute("aria-valuetext", label);
  // Read aloud step by step, but not while it plays or grows by itself.
  view.ui.place.setAttribute("aria-live", moving ? "off" : "polite");
  markFigures(view);
}
