// The close-up of a piece of the picture: one token in plain sentences, its coin, the distributions it was judged by, and
// the draw; of a text, more of it.

import { make } from "../../shared/dom.js";
import { quoted } from "../../shared/tokens.js";
import { evidence } from "./evidence.js";
import { tokenName } from "../record/names.js";
import { placeLabel, sealedAt, sentenceHere } from "../place.js";
import { isLossy, rowOf, tokenAt } from "../record/records.js";
import { sayAllowed, sayDistance, sayReach, sayReadAgain } from "../record/sentences.js";
import { roundShown } from "./suppose.js";
import { saySupposed } from "./supposing.js";
import { blockTable, siblingTable } from "./tables.js";
import { whatIf } from "./whatif.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */

/** What is known of a token here. @param {View} view @param {Spot} spot */
export function closeup(view, spot) {
  const round = roundShown(view, spot.round);
  const { index } = spot;
  const token = tokenAt(round, index);
  const { coin, bars, draw } = evidence(view, spot);
  const say = make("p", { class: "say", part: "say", text: saySupposed(view, spot) ?? sentenceHere(view, spot) });
  const title = (/** @type {string} */ text) => make("h3", { part: "picture-title", text });
  const pictures = make("div", { class: "pictures" }, make("div", {}, ...bars), make("div", {}, ...draw));
  if (sealedAt(view, spot)) return [make("div", { class: "said" }, title(placeLabel(view)), say), pictures];
  const name = view.say("rounds.title", { round: spot.round + 1, name: tokenName(view.run, round, index), token: "unknown" in token ? "?" : quoted(view.say, token.text) });
  const tables = [...blockTable(view.run, round, index), ...siblingTable(view.run, round, index)];
  const notes = [];
  const row = rowOf(round, index);
  if (row.allowed != null) notes.push(make("p", { class: "raw", part: "allowed", text: sayAllowed(view.run, row) }));
  if (row.reach != null && index !== "next") notes.push(make("p", { class: "raw", part: "reach", text: sayReach(view.run, row.reach) }));
  if (round.read_again) notes.push(make("p", { class: "raw", part: "read_again", text: sayReadAgain(view.run, round) }));
  if (isLossy(round)) notes.push(make("p", { class: "raw", part: "distance", text: sayDistance(view.run, round) }));
  if (view.pinned && !view.presentation.open) notes.push(make("p", { class: "raw", text: view.say("rounds.pinned") }));
  return [make("div", { class: "said" }, title(name), say, ...coin, ...whatIf(view, spot), ...tables), pictures, make("div", { class: "notes" }, ...notes)];
}
