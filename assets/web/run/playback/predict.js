// Predicting: a class guesses each verdict, and each token that the target draws, before it is shown.

import { make, setText } from "../../shared/dom.js";
import { quoted, showToken } from "../../shared/tokens.js";
import { acceptedIndexes, isRefusal, rowOf, tokenText } from "../record/records.js";
import { stageAt } from "../record/stages.js";
import { depthOf } from "../record/trees.js";
import { wallParts } from "./wall.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../view.js").View} View */
/** @typedef {import("../view.js").Actions} Actions */
/** @typedef {import("../types.js").Place} Place */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").Question} Question */

const LIKELIEST = 4; // tokens to choose from; whichever else was drawn is "another"

/** @param {Place} place */
const nameOf = ({ round, stage }) => `${round} ${stage}`;

/** Whether what happens at a place is still to be guessed. @param {View} view @param {Place} place */
export function isDue(view, place) {
  const { predicting, guesses } = view.playback;
  return predicting && !guesses.has(nameOf(place)) && ["decide", "next"].includes(stageAt(view.run, place).kind);
}

/** @param {View} view @param {Place} place @returns {Question} */
export function questionAt({ run }, place) {
  const round = run.at(place.round);
  const { kind, index, whole } = stageAt(run, place);
  if (kind === "next") return askNext(run, round);
  if (whole) return askKept(run, round);
  const token = round.drafted[Number(index)];
  const options = ["accepted", "rejected"].map((value) => ({ value, key: value[0], text: run.say(`rounds.${value}`) }));
  return { text: run.say("playback.ask_verdict", { token: quoted(run.say, token.text) }), options, truth: token.outcome };
}

/** Where one decision is made on all draft tokens. @param {Run} run @param {Round} round @returns {Question} */
function askKept(run, round) {
  const most = Math.max(...round.drafted.map((_, index) => depthOf(round, index)));
  const options = Array.from({ length: most + 1 }, (_, n) => ({ value: String(n), key: n < 10 ? String(n) : null, text: String(n) }));
  return { text: run.say("playback.ask_kept"), options, truth: String(acceptedIndexes(round).length) };
}

/** Among the likeliest of what it is drawn from. @param {Run} run @param {Round} round @returns {Question} */
function askNext(run, round) {
  const { p, p_raw: raw, residual } = rowOf(round, "next");
  const refused = isRefusal(run, round, "next");
  const pairs = (run.start.greedy ? raw : refused ? residual : null) ?? p;
  const ids = [...pairs].sort((a, b) => b[1] - a[1]).slice(0, LIKELIEST).map(([id]) => id);
  const { id: next } = round.next;
  const options = ids.map((id, i) => ({ value: String(id), key: String(i + 1), token: tokenText(run, id) }));
  const other = { value: "other", key: String(ids.length + 1), text: run.say("playback.another") };
  const key = run.start.greedy ? "greedy" : refused ? "residual" : "own";
  return { text: run.say(`playback.ask_${key}`), options: [...options, other], truth: next !== null && ids.includes(next) ? String(next) : "other" };
}

/** Notes a guess; null: none was made, it was only to be shown. @param {View} view @param {Place} place @param {string | null} value */
export function noteGuess(view, place, value) {
  view.playback.guesses.set(nameOf(place), value === null ? null : value === questionAt(view, place).truth);
}

/**
 * The switch, and what it brings: the question, its answers and the tally.
 *
 * @param {View} view @param {Actions} actions @param {HTMLElement} forward gets the focus when an answer was given
 */
export function predictionPanel(view, actions, forward) {
  const toggle = make("button", { type: "button", class: "go predict", part: "predict", "aria-pressed": "false",
    text: view.say("playback.predict"), title: view.say("playback.predict_about"), on: { click: actions.togglePredict } });
  const said = make("span", { class: "question", part: "question", role: "status" });
  const options = make("div", { class: "options", part: "options", on: { click: (event) => {
    const button = event.target.closest("button");
    if (button) actions.guess(button.dataset.value ?? null);
  } } });
  const tally = make("span", { class: "tally", part: "tally" });
  const wall = wallParts(view, options);
  const box = make("div", { class: "prediction hidden", part: "prediction", role: "group", "aria-label": view.say("playback.predict") }, said, options, tally);
  view.ui.prediction = { toggle, box, said, options, tally, wall, forward, asked: null, open: false };
  return { toggle, box };
}

/** @param {View} view */
export function drawPredictions(view) {
  const { at, predicting, asking, guesses } = view.playback;
  const question = asking && questionAt(view, asking);
  const made = [...guesses.values()].filter((right) => right !== null);
  const said = question ? { text: question.text, right: null } : outcome(view);
  const panel = view.ui.prediction;
  const opens = predicting && panel.box.classList.contains("hidden");
  panel.box.classList.toggle("hidden", !predicting);
  if (opens) view.ui.transport.scrollIntoView({ block: "nearest" }); // a window may end above it
  panel.toggle.setAttribute("aria-pressed", String(predicting));
  setText(panel.said, said.text);
  panel.said.dataset.right = String(said.right);
  setText(panel.tally, view.say("playback.tally", { right: made.filter(Boolean).length, n: made.length }));
  // A class sees its guesses beside the truth: they stay until its teacher goes on, to another place.
  const asked = asking ?? (at !== null && at === panel.asked && panel.wall.gathers() ? at : null);
  const open = asking !== null;
  if (panel.asked === asked && panel.open === open) return;
  Object.assign(panel, { asked, open });
  if (!open && panel.options.contains(view.shadow.activeElement)) panel.forward.focus();
  if (open || !asked) panel.options.replaceChildren(...(question ? answers(view, question) : []));
  else settle(panel.options, questionAt(view, asked).truth);
  panel.wall.ask(question);
}

/** Nothing is left to choose, and the right answer is marked. @param {HTMLElement} options @param {string} truth */
function settle(options, truth) {
  options.querySelector(".show")?.remove();
  for (const one of options.querySelectorAll("button")) {
    one.disabled = true;
    if (one.dataset.value === truth) one.setAttribute("aria-current", "true");
  }
}

/** How the guess at the reader's place came out. @param {View} view */
function outcome(view) {
  const { at, guesses } = view.playback;
  const right = at ? guesses.get(nameOf(at)) : undefined;
  if (right === undefined) return { text: view.say("playback.predict_how"), right: null };
  return { text: view.say(right === null ? "playback.only_shown" : right ? "playback.guessed_right" : "playback.guessed_wrong"), right };
}

/** @param {View} view @param {Question} question */
function answers(view, { options }) {
  const buttons = options.map(({ value, key, text, token }) => {
    const name = token === undefined ? make("span", { class: "name", text }) : showToken(view.say, make("span", { class: "name" }), token);
    const label = token === undefined ? null : quoted(view.say, token);
    return make("button", { type: "button", class: token === undefined ? "go" : "go token", "data-value": value, "aria-keyshortcuts": key, "aria-label": label },
      ...(key === null ? [] : [make("kbd", { "aria-hidden": "true", text: key.toUpperCase() })]), name);
  });
  return [...buttons, make("button", { type: "button", class: "go show", text: view.say("playback.show") })];
}
