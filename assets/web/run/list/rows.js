// Draws a round's row of the list.

import { make } from "../../shared/dom.js";
import { brief } from "../../shared/numbers.js";
import { draftChip, early, markChosen, nextChip, reason } from "./chips.js";
import { acceptedIndexes, isLossy } from "../record/records.js";
import { dressed } from "./seals.js";
import { sayDistance, sayReadAgain } from "../record/sentences.js";
import { treeBox } from "./tree_box.js";
import { isTree, pathOf } from "../record/trees.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Round} Round */

/**
 * A round's row. A tree's row holds the kept path alone, in the chips of a chain, and says how much was tried for it:
 * a class reads the list as text grows, and can read one tree at a time, so a tree unfolds where somebody asks for it.
 *
 * @param {View} view @param {number} index
 */
export function roundRow(view, index) {
  const round = view.run.rounds[index];
  if (!round) return dressed(view, make("div", { class: "hole", role: "listitem", "data-missing": index, text: view.say("rounds.hole", { round: index + 1 }) }));
  const tree = isTree(round);
  const open = tree && view.opened.has(index);
  const chips = make("div", { class: "chips" });
  if (!open) fillPath(view.run, chips, index, round);
  if (tree) chips.append(toggle(view.run, index, round, open));
  if (open) chips.append(...early(view.run, round), ...reason(view.run, round));
  const row = make("div", { class: "round", part: "round", role: "listitem", "data-round": index },
    make("div", { class: "n", text: String(index + 1) }), chips, sumCell(view.run, round, tree), ...(open ? [treeBox(view.run, index, round)] : []));
  if (view.chosen?.round === index) markChosen(row.querySelector(`.chip[data-index="${view.chosen.index}"]`));
  return dressed(view, row);
}

/**
 * The chips of one line: a chain's draft tokens, or a tree's kept path, and the target's own token.
 *
 * @param {Run} run @param {HTMLElement} chips @param {number} index @param {Round} round
 */
export function fillPath(run, chips, index, round) {
  for (const position of pathOf(round)) {
    if (position !== "next") chips.append(draftChip(run, index, position, round));
  }
  chips.append(...early(run, round));
  const arrow = make("span", { class: "arrow", "aria-hidden": "true", text: "→" });
  chips.append(round.drafted.length ? make("span", { class: "ending" }, arrow, nextChip(run, index, round)) : nextChip(run, index, round));
  chips.append(...reason(run, round));
}

/** @param {Run} run @param {number} index @param {Round} round @param {boolean} open */
function toggle(run, index, round, open) {
  const kept = run.say("rounds.kept", { kept: acceptedIndexes(round).length, drafted: round.drafted.length });
  return make("button", { type: "button", class: "toggle", part: "toggle", tabindex: "-1", "data-round": index, "aria-expanded": String(open),
    "aria-label": run.say("rounds.toggle", { round: index + 1, kept }), text: `${open ? "▾" : "▸"} ${kept}` });
}

/** @param {Run} run @param {Round} round @param {boolean} tree */
function sumCell(run, round, tree) {
  const judged = round.drafted.filter((token) => token.outcome !== "discarded").length;
  const accepted = acceptedIndexes(round).length;
  const lines = [make("b", { text: run.say("rounds.tokens", { n: round.emitted.length }) })];
  if (!round.drafted.length) lines.push(run.say("rounds.plain"));
  else if (tree) lines.push(run.say("rounds.judged", { judged }));
  else lines.push(run.say(judged < round.drafted.length ? "rounds.accepted_of_judged" : "rounds.accepted_of_all", { accepted, judged }));
  if (isLossy(round)) lines.push(make("span", { class: "lossy", text: run.say("rounds.lossy", { distance: brief(round.distance) }), title: sayDistance(run, round) }));
  if (round.dropped) lines.push(make("span", { class: "cut", text: `✂ ${run.say("rounds.cut_off", { dropped: round.dropped })}`, title: run.say("rounds.cut_off_why") }));
  if (round.read_again) lines.push(make("span", { text: `↺ ${run.say("rounds.read_again", { n: round.read_again })}`, title: sayReadAgain(run, round) }));
  return make("div", { class: "sum" }, ...lines);
}
