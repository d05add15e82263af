// Brings the page up to the state: what arrived since the last drawing is appended.

import { make, setText } from "../shared/dom.js";
import { showSomething } from "./choosing.js";
import { drawFigures } from "./figures.js";
import { CHUNK, ROW_GUESS, chunkOf, ensureTabStop, fill } from "./list/list.js";
import { drawPicture } from "./picture/picture.js";
import { forgetDrawn, isLater, noteRound } from "./place.js";
import { drawPlayback } from "./playback/playback.js";
import { roundRow } from "./list/rows.js";
import { countDistance, drawLossy, drawNote, drawOther, metaLine } from "./status.js";
import { hideLater, textSpans, writeToken } from "./list/text.js";

/** @typedef {import("./view.js").View} View */

const DRAW_EVERY = 80; // ms between two drawings

/**
 * Draws soon, at most once per DRAW_EVERY however many messages come in: the models want these processors too.
 *
 * @param {View} view
 */
export function schedule(view) {
  if (view.scheduled) return;
  view.scheduled = true;
  const wait = Math.max(0, view.lastDraw + DRAW_EVERY - performance.now());
  setTimeout(() => requestAnimationFrame(() => {
    view.scheduled = false;
    view.lastDraw = performance.now();
    draw(view);
  }), wait);
}

/** Empties text and list; the next frame draws the state from its beginning. @param {View} view */
export function redraw(view) {
  view.ui.watcher.disconnect();
  view.ui.list.replaceChildren();
  view.ui.prompt.textContent = view.run.start.prompt ?? "";
  view.ui.paper.replaceChildren(make("div", { class: "lines" }, view.ui.prompt, view.ui.caret));
  forgetDrawn(view);
  Object.assign(view, { drawn: 0, chunks: [], spans: [], distance: { sum: 0, rounds: 0 } });
  view.ui.followText.jump();
  view.ui.followRounds.jump();
  drawPicture(view);
  schedule(view);
}

/** @param {View} view */
export function draw(view) {
  if (view.ui.view.dataset.state !== view.run.phase) view.ui.view.dataset.state = view.run.phase;
  const status = view.run.phase === "running" && !view.run.rounds.length ? view.say("rounds.reading") : view.run.status;
  setText(view.ui.status, status);
  view.ui.status.title = status;
  setText(view.ui.meta, metaLine(view));
  const { recorded, file } = view.run.start;
  const source = recorded || (file ? view.say("rounds.opened", { file }) : "");
  setText(view.ui.recorded, source);
  view.ui.recorded.classList.toggle("hidden", !source);
  drawNote(view);
  drawOther(view);
  drawFigures(view);
  const some = view.run.key !== null;
  view.ui.textEmpty.classList.toggle("hidden", some);
  view.ui.roundsEmpty.classList.toggle("hidden", view.run.rounds.length > 0);
  if (view.drawn < view.run.rounds.length) appendRounds(view);
  drawLossy(view);
  drawPlayback(view);
  showSomething(view);
}

/** @param {View} view */
function appendRounds(view) {
  const newestChunk = Math.floor((view.run.rounds.length - 1) / CHUNK);
  for (let index = view.drawn; index < view.run.rounds.length; index += 1) {
    view.spans[index] = textSpans(view.run, index);
    view.spans[index].forEach((span) => writeToken(view, span));
    noteRound(view, index);
    if (view.playback.at) hideLater(view, index);
    countDistance(view, view.run.rounds[index]);
    const chunk = chunkOf(view, index);
    if (Math.floor(index / CHUNK) === newestChunk && !chunk.built && !isLater(view, chunk)) fill(view, chunk, index);
    if (chunk.built) chunk.box.append(roundRow(view, index));
    else chunk.box.style.height = `${(index - chunk.first + 1) * ROW_GUESS}px`;
  }
  view.drawn = view.run.rounds.length;
  ensureTabStop(view);
}
