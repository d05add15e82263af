// The inspector: one token in plain sentences, its coin, the distributions it was judged by, and the draw.

import { make } from "../shared/dom.js";
import { quoted } from "../shared/tokens.js";
import { evidence } from "./evidence.js";
import { tokenName } from "./names.js";
import { placeLabel, sealedAt, sentenceHere } from "./place.js";
import { isLossy, rowOf, tokenAt } from "./records.js";
import { sayDistance, sayReach, sayReadAgain } from "./sentences.js";
import { blockTable, siblingTable } from "./tables.js";
import { whatIf } from "./whatif.js";

/** @typedef {import("./view.js").View} View */

/** @param {View} view @param {() => void} onClose */
export function inspectorCard(view, onClose) {
  view.ui.title = make("h3", { part: "inspector-title" });
  view.ui.body = make("div", { part: "inspector-body" });
  const close = make("button", { class: "close", type: "button", "aria-label": view.say("rounds.close"), text: "×",
    on: { click: onClose } });
  view.ui.inspector = make("aside", { class: "card inspector", part: "inspector", tabindex: "0", "aria-label": view.say("rounds.inspector") },
    make("div", { class: "title" }, view.ui.title, close), view.ui.body);
  view.ui.inspector.addEventListener("keydown", (event) => event.key === "Escape" && onClose());
  return view.ui.inspector;
}

/** @param {View} view */
export function renderInspector(view) {
  const { chosen } = view;
  const round = chosen && view.run.rounds[chosen.round];
  if (!round) {
    view.ui.title.textContent = view.say("rounds.inspector");
    view.ui.body.replaceChildren(make("p", { class: "say", text: view.say("rounds.invitation") }));
    return;
  }
  if (renderSealed(view)) return;
  const { index } = chosen;
  const token = tokenAt(round, index);
  view.ui.title.textContent = view.say("rounds.title", { round: chosen.round + 1, name: tokenName(view.run, round, index), token: quoted(view.say, token.text) });
  const { coin, bars, draw } = evidence(view, chosen);
  const otherwise = whatIf(view, chosen); // beside the coin that it sets
  const parts = [make("p", { class: "say", part: "say", text: sentenceHere(view, chosen) }), ...coin, ...(index === "next" ? [] : otherwise),
    ...blockTable(view.run, round, index), ...siblingTable(view.run, round, index), ...bars, ...draw, ...(index === "next" ? otherwise : [])];
  const { reach } = rowOf(round, index);
  if (reach != null && index !== "next") parts.push(make("p", { class: "raw", part: "reach", text: sayReach(view.run, reach) }));
  if (round.read_again) parts.push(make("p", { class: "raw", part: "read_again", text: sayReadAgain(view.run, round) }));
  if (isLossy(round)) parts.push(make("p", { class: "raw", part: "distance", text: sayDistance(view.run, round) }));
  if (view.pinned && view.ui.view.dataset.layout === "wide") parts.push(make("p", { class: "raw", text: view.say("rounds.pinned") }));
  view.ui.body.replaceChildren(...parts);
  // Another token is read from its beginning.
  if (view.ui.inspected !== token) view.ui.inspector.scrollTop = 0;
  view.ui.inspected = token;
}

/** The inspector, while the verdict on its token is still to come; returns whether it was. @param {View} view */
function renderSealed(view) {
  const { chosen } = view;
  if (!chosen || !sealedAt(view, chosen)) return false;
  const { bars, draw } = evidence(view, chosen);
  view.ui.title.textContent = placeLabel(view);
  view.ui.body.replaceChildren(make("p", { class: "say", part: "say", text: sentenceHere(view, chosen) }), ...bars, ...draw);
  return true;
}
