// Presentation: the round of the reader's place, large enough for the back row, over the whole window.

import { make, setText } from "../shared/dom.js";
import { choose } from "./choosing.js";
import { evidence } from "./evidence.js";
import { runningFigures } from "./figures.js";
import { frontier, lastPlace, place, placeLabel, sentenceHere, spotHere } from "./place.js";
import { predictionPanel } from "./predict.js";
import { qrParts } from "./qr.js";
import { fillPath } from "./rows.js";
import { indexOf, tell } from "./seals.js";
import { knownAt } from "./stages.js";
import { choices, icon } from "./transport.js";
import { treeBox } from "./tree_box.js";
import { isTree } from "./trees.js";

/** @typedef {import("./data.js").Run} Run */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./view.js").Actions} Actions */
/** @typedef {import("./types.js").Round} Round */
/** @typedef {import("./types.js").Place} Place */

// How much larger than in the list a round is drawn: as large as fits, between these, by these steps.
const [LARGEST, SMALLEST, STEP] = [2, 0.4, 0.05];

const TOKENS_SHOWN = 90; // of the text's end: more than its lines can hold

/** @param {View} view @param {Actions} actions */
export function buildPresentation(view, actions) {
  const close = make("button", { type: "button", class: "go close", part: "present-close", text: view.say("playback.close"), on: { click: () => closePresentation(view) } });
  const button = (name, click) => make("button", { type: "button", class: "go", "aria-label": view.say(`playback.${name}`), on: { click } }, icon(name));
  view.ui.presentPlace = make("h2", { part: "present-place" });
  view.ui.presentText = make("p", { class: "tail", part: "present-text", dir: "auto" });
  view.ui.presentRound = make("div", { class: "large", part: "present-round", on: { click: (event) => onLargeChip(view, event) } });
  view.ui.presentCoin = make("div", { class: "coins", part: "present-coin" });
  view.ui.presentSay = make("p", { class: "says", part: "present-say", "aria-live": "polite" });
  view.ui.presentBars = make("div", { class: "picture both", part: "present-bars" });
  view.ui.presentDraw = make("div", { class: "picture draw", part: "present-draw" });
  view.ui.presentPlay = make("button", { type: "button", class: "go play", part: "present-play", on: { click: actions.togglePlay } });
  view.ui.presentForward = button("forward", () => actions.step(1));
  const prediction = predictionPanel(view, actions, view.ui.presentForward, "present-");
  view.ui.dialog = make("dialog", { class: "presentation", part: "presentation", "aria-label": view.say("playback.presentation"),
    on: { close: () => onPresentationClosed(view) } },
    make("div", { class: "top" }, view.ui.presentPlace, ...runningFigures(view), prediction.toggle, close), make("div", { class: "past" }, view.ui.presentText), view.ui.presentRound,
    make("div", { class: "why" }, make("div", { class: "said" }, view.ui.presentSay, view.ui.presentCoin),
      make("div", { class: "pictures" }, view.ui.presentBars, view.ui.presentDraw)),
    prediction.box,
    make("div", { class: "bottom" }, button("back", () => actions.step(-1)), view.ui.presentPlay, view.ui.presentForward,
      make("div", { class: "choices" }, ...choices(view, "present-")), ...qrParts(view), make("span", { class: "keys", text: view.say("playback.keys") })));
  view.ui.view.append(view.ui.dialog);
  new ResizeObserver(() => fitRound(view)).observe(view.ui.presentRound);
  document.addEventListener("fullscreenchange", () => document.fullscreenElement === null && closePresentation(view));
  // The tab before: the page behind an open dialog takes no clicks.
  window.addEventListener("popstate", () => closePresentation(view));
}

/** @param {View} view */
export async function openPresentation(view) {
  if (view.presentation.open || !view.drawn) return;
  view.presentation.open = true;
  view.presentation.before = /** @type {HTMLElement | null} */ (view.shadow.activeElement);
  try {
    await document.documentElement.requestFullscreen();
  } catch {
    // Refused by the browser, or by the page that frames this one: the window will do.
  }
  // Only now: what enters the top layer last lies on top.
  view.ui.dialog.showModal();
  view.ui.presentPlay.focus();
  view.presentation.drawn = "";
  drawPresentation(view);
}

/** @param {View} view */
function closePresentation(view) {
  if (view.ui.dialog.open) view.ui.dialog.close();
}

/** @param {View} view */
function onPresentationClosed(view) {
  view.presentation.open = false;
  view.ui.presentRound.replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  (view.presentation.before ?? view.ui.present).focus({ preventScroll: true });
}

/** Any token whose verdict is out explains itself. @param {View} view @param {any} event */
function onLargeChip(view, event) {
  const button = event.target.closest(".chip");
  if (!button) return;
  choose(view, place(button));
  drawPresentation(view);
}

/** @param {View} view */
export function drawPresentation(view) {
  if (!view.ui.dialog?.open) return;
  const at = view.playback.at ?? lastPlace(view);
  setText(view.ui.presentPlace, placeLabel(view));
  const moving = view.playback.playing || (view.playback.at === null && view.run.phase === "running");
  view.ui.presentPlay.dataset.icon = moving ? "pause" : "play";
  view.ui.presentPlay.setAttribute("aria-label", view.say(moving ? "playback.pause" : "playback.play"));
  for (const node of [view.ui.presentPlay, view.ui.presentForward]) node.setAttribute("aria-disabled", String(view.playback.asking !== null));
  drawTextEnd(view, view.playback.at ? frontier(view) : { round: at.round, count: view.run.rounds[at.round]?.emitted.length ?? 0 });
  drawLargeRound(view, at);
  drawReason(view, at);
}

/**
 * The end of what is committed, tinted like the text itself.
 *
 * @param {View} view @param {{ round: number, count: number }} end
 */
function drawTextEnd(view, { round, count }) {
  const spans = [];
  for (let index = round; index >= 0 && spans.length < TOKENS_SHOWN; index -= 1) {
    const own = view.spans[index] ?? [];
    spans.unshift(...(index === round ? own.slice(0, count) : own));
  }
  const copies = spans.slice(-TOKENS_SHOWN).map((span) => make("span", { class: `t ${span.dataset.kind ?? "missing"}`, text: span.textContent }));
  const prompt = spans.length < TOKENS_SHOWN ? [make("span", { class: "prompt", text: view.run.start.prompt ?? "" })] : [];
  view.ui.presentText.replaceChildren(...prompt, ...copies, make("span", { class: "caret here", "aria-hidden": "true" }));
}

/**
 * A tree is drawn as a tree, a chain in one line; drawn once a round, then only told.
 *
 * @param {View} view @param {Place} place
 */
function drawLargeRound(view, { round: index, stage }) {
  const round = stage > 0 ? view.run.rounds[index] : null;
  const drawn = round ? `${view.run.key} ${index}` : "";
  if (view.presentation.drawn !== drawn || !round) {
    view.presentation.drawn = drawn;
    view.ui.dialog.toggleAttribute("data-tree", Boolean(round && isTree(round)));
    view.ui.presentRound.replaceChildren(...(round ? [largeRound(view.run, index, round)] : []));
    if (round) tell(view.run, view.ui.presentRound, index, knownAt(view.run, index, 0)); // its chips take the room of any verdict
    fitRound(view);
  }
  if (!round) return;
  tell(view.run, view.ui.presentRound, index, view.playback.at ? knownAt(view.run, index, stage) : null);
  for (const button of view.ui.presentRound.querySelectorAll(".chip")) {
    const { chosen } = view;
    button.classList.toggle("chosen", chosen?.round === index && chosen.index === indexOf(button));
  }
  view.ui.presentRound.querySelector(".chip.chosen")?.scrollIntoView({ block: "nearest", inline: "center" });
}

/** @param {View} view */
const fitRound = ({ ui }) => fit(ui.presentRound, ui.presentRound.firstElementChild, LARGEST);

/**
 * Nothing is cut off, and nothing scrolls: what a box holds is drawn as large as there is room.
 *
 * @param {HTMLElement} box @param {HTMLElement | undefined} drawn @param {number} largest
 */
function fit(box, drawn, largest) {
  if (!drawn) return;
  const isWhole = (/** @type {HTMLElement} */ node) => node.scrollHeight <= node.clientHeight && node.scrollWidth <= node.clientWidth;
  let scale = largest;
  do {
    drawn.style.zoom = String(scale);
    scale -= STEP;
  } while (!(isWhole(box) && isWhole(drawn)) && scale >= SMALLEST);
}

/** @param {Run} run @param {number} index @param {Round} round */
function largeRound(run, index, round) {
  if (isTree(round)) return treeBox(run, index, round);
  const chips = make("div", { class: "chips" });
  fillPath(run, chips, index, round);
  return chips;
}

/** The sentence and the pictures of the token that is looked at. @param {View} view @param {Place} at */
function drawReason(view, at) {
  const here = view.chosen?.round === at.round ? view.chosen : spotHere(view, at);
  const known = here && view.run.rounds[at.round] ? here : null;
  setText(view.ui.presentSay, known ? sentenceHere(view, known) : view.say(at.stage ? "playback.say_missing" : "playback.say_start"));
  const { coin, bars, draw } = known ? evidence(view, known) : { coin: [], bars: [], draw: [] };
  view.ui.presentCoin.replaceChildren(...coin);
  view.ui.presentBars.replaceChildren(...bars);
  view.ui.presentDraw.replaceChildren(...draw);
  view.ui.dialog.toggleAttribute("data-draw", known?.index === "next" && draw.length > 0);
  fit(view.ui.presentSay.parentNode, view.ui.presentSay, 1);
}
