// The text of a run, each token tinted by where it came from.

import { make } from "../../shared/dom.js";
import { follower } from "./follower.js";
import { frontier } from "../place.js";
import { chipOfEmitted, emittedPosition, nextKind } from "../record/records.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */

/** @param {View} view */
export function textCard(view) {
  view.ui.status = make("span", { class: "status", role: "status", "aria-live": "polite", part: "status" });
  view.ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
  view.ui.prompt = make("span", { class: "prompt", part: "prompt" });
  view.ui.caret = make("span", { class: "caret", "aria-hidden": "true" });
  view.ui.paper = make("div", { class: "paper", part: "paper", translate: "no" });
  view.ui.textEmpty = make("div", { class: "empty" }, make("p", {
    text: view.say("rounds.text_empty"),
  }));
  view.ui.text = make("div", { class: "text", part: "text", tabindex: "0", role: "region", "aria-label": view.say("rounds.text_region") },
    view.ui.textEmpty, view.ui.paper);
  view.ui.followText = follower(view.ui.text, view.ui.paper);
  view.ui.recorded = make("span", { class: "recorded hidden", part: "recorded" });
  view.ui.other = make("span", { class: "foreign hidden", part: "foreign", role: "status" }); // whose figures these are, while that is not plain
  const head = make("div", { class: "head" }, view.ui.recorded, view.ui.other, view.ui.status);
  return make("div", { class: "card", part: "text-card" }, head, view.ui.note, view.ui.text);
}

/** @param {Run} run @param {number} index */
export function textSpans(run, index) {
  const round = run.rounds[index];
  if (!round) return [make("span", { class: "missing", text: " […] " })];
  return round.pieces.map((piece, k) => {
    const chip = chipOfEmitted(round, k);
    const kind = chip === "next" ? nextKind(round) : "accepted";
    return make("span", { class: `t ${kind}`, "data-round": index, "data-token": k, "data-kind": kind, text: piece });
  });
}

/**
 * Appends a token to the text. A line break at a token's end closes its block: it looks the same, and the browser lays
 * out one block for each new token instead of the whole text.
 *
 * @param {View} view @param {HTMLElement} span
 */
export function writeToken(view, span) {
  view.ui.caret.before(span);
  if (span.textContent.endsWith("\n")) view.ui.paper.append(make("div", { class: "lines" }, view.ui.caret));
}

/** @param {View} view @param {number} index @param {{ round: number, count: number } | null} [now] */
export function hideLater(view, index, now = view.playback.shown) {
  if (!now) return;
  view.spans[index].forEach((span, k) => span.classList.toggle("later", index > now.round || (index === now.round && k >= now.count)));
}

/**
 * Later tokens keep their places, unseen: nothing moves. Only those between the last place and this one are touched.
 *
 * @param {View} view
 */
export function showText(view) {
  const now = frontier(view);
  const before = view.playback.shown ?? { round: view.drawn, count: 0 };
  const first = Math.min(now.round, before.round);
  const last = Math.min(Math.max(now.round, before.round), view.drawn - 1);
  for (let index = first; index <= last; index += 1) hideLater(view, index, now);
  view.playback.shown = view.playback.at && now;
}

/**
 * How far to scroll so that a word comes into the box, with a line to spare; its last line counts.
 *
 * @param {HTMLElement} box @param {Element} node
 */
export function scrollFor(box, node) {
  const area = box.getBoundingClientRect();
  const at = [...node.getClientRects()].at(-1);
  if (!at) return 0;
  if (at.bottom > area.bottom) return at.bottom - area.bottom + 2 * at.height;
  return at.top < area.top ? at.top - area.top - 2 * at.height : 0;
}

/** Brings a token's word into the text's box; of a token that left none, the one that stands in its place. @param {View} view @param {Spot} spot */
export function showWord(view, { round, index }) {
  const words = view.spans[round] ?? [];
  const word = words[emittedPosition(view.run.at(round), index)] ?? words.at(-1);
  const down = word ? scrollFor(view.ui.text, word) : 0;
  if (!down) return;
  view.ui.followText.hold(); // or the next thing that is laid out would take the text to its end
  view.ui.text.scrollTop += down;
}
