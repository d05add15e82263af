// The rounds of a run side by side, one column each: the tokens that it added to the text, from below, and above them what
// was drafted in vain. The bar's slider lies over it, so a column is also the way to its round.

import { make, svg } from "../../shared/dom.js";
import { roundsOver } from "../place.js";
import { acceptedIndexes, nextKind } from "../record/records.js";
import { depthOf } from "../record/trees.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Round} Round */

const KINDS = ["accepted", "recovered", "bonus", "plain", "discarded"];

/** @param {View} view */
export function stripBox(view) {
  const paths = KINDS.map((kind) => svg("path", { class: kind }));
  view.ui.strip = svg("svg", { class: "columns", part: "strip", preserveAspectRatio: "none", "aria-hidden": "true" }, ...paths);
  return make("div", { class: "strip" }, view.ui.strip, view.ui.scrub);
}

/** What a round's column is made of, from below. @param {Round | null} round @returns {string[]} */
function column(round) {
  if (!round) return [];
  const kept = [...acceptedIndexes(round).map(() => "accepted"), nextKind(round)];
  const deepest = Math.max(0, ...round.drafted.map((_, index) => depthOf(round, index)));
  return [...kept, ...Array(Math.max(0, deepest - kept.length)).fill("discarded")];
}

/** Draws the columns where there are new ones, and shows those whose rounds are over at the reader's place. @param {View} view */
export function drawStrip(view) {
  const { run, drawn, ui, playback: { showing, predicting } } = view;
  const drawing = `${run.key} ${drawn} ${run.missing.length}`;
  if (ui.strip.dataset.drawn !== drawing) {
    ui.strip.dataset.drawn = drawing;
    const columns = run.rounds.slice(0, drawn).map(column);
    const height = Math.max(1, ...columns.map(({ length }) => length));
    ui.strip.setAttribute("viewBox", `0 0 ${Math.max(1, drawn)} ${height}`);
    KINDS.forEach((kind, i) => ui.strip.children[i].setAttribute("d", columns.map((parts, x) =>
      parts.map((part, y) => (part === kind ? `M${x + 0.08} ${height - y - 0.92}h.84v.84h-.84z` : "")).join("")).join("")));
  }
  ui.strip.style.setProperty("--over", `${drawn ? (100 * roundsOver(view)) / drawn : 0}%`);
  ui.strip.toggleAttribute("data-sealed", showing || predicting); // what is still to be seen is not given away
}
