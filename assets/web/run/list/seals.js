// Hides in a round's row what is still to come at the reader's place.

import { make } from "../../shared/dom.js";
import { brief, briefly } from "../../shared/numbers.js";
import { quoted } from "../../shared/tokens.js";
import { anyVerdict } from "./chips.js";
import { isGreedy } from "../record/records.js";
import { knownAt, pendingOf } from "../record/stages.js";

/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */
/** @typedef {import("../types.js").Known} Known */
/** @typedef {import("../types.js").Pending} Pending */

/**
 * A row of the list as the reader's place shows it: hidden while it is to come, told up to its stage while it is on.
 *
 * @param {View} view @param {HTMLElement} row
 */
export function dressed(view, row) {
  const { at } = view.playback;
  const index = Number(row.dataset.round ?? row.dataset.missing);
  const here = at !== null && index === at.round && at.stage > 0;
  row.classList.toggle("later", at !== null && !here && index >= at.round);
  if (!here && !row.classList.contains("now")) return row;
  row.classList.toggle("now", here);
  if (view.run.rounds[index]) tell(view.run, row, index, here ? knownAt(view.run, index, at.stage) : null);
  return row;
}

/**
 * Seals what is still to come in the chips and branches of `box`; known null breaks all seals.
 *
 * @param {Run} run @param {HTMLElement} box @param {number} index @param {Known | null} known
 */
export function tell(run, box, index, known) {
  box.classList.toggle("staged", known !== null && !known.complete);
  box.classList.toggle("passing", known?.stage?.kind === "pass");
  box.classList.toggle("drafting", known !== null && known.drafted < run.at(index).drafted.length);
  for (const button of box.querySelectorAll(".chip")) seal(run, button, run.at(index), known);
  for (const branch of /** @type {NodeListOf<SVGElement>} */ (box.querySelectorAll(".branches path"))) {
    branch.dataset.pending = (known && pendingOf(known, indexOf(branch))) ?? "no";
  }
}

/** @param {HTMLElement | SVGElement} node @returns {Index} */
export const indexOf = (node) => (node.dataset.index === "next" ? "next" : Number(node.dataset.index));

/**
 * A sealed chip keeps its size and shows, in place of the verdict, the numbers known so far.
 *
 * @param {Run} run @param {any} button @param {Round} round @param {Known | null} known
 */
function seal(run, button, round, known) {
  const index = indexOf(button);
  if (known && index !== "next" && !button.querySelector(".any")) button.append(anyVerdict(run, round, index));
  const pending = known ? pendingOf(known, index) : null;
  const now = known?.stage;
  const landing = now && !pending && (now.whole ? index !== "next" : now.index === index);
  button.classList.toggle("landing", Boolean(landing) && ["decide", "next"].includes(now?.kind ?? ""));
  button.verdict ??= button.getAttribute("aria-label");
  if (!pending) {
    delete button.dataset.pending;
    button.setAttribute("aria-label", button.verdict);
    return;
  }
  button.dataset.pending = pending;
  if (index === "next") return; // unborn until the end
  button.setAttribute("aria-label", run.say(`playback.chip_${pending === "passed" ? "passed" : "drafted"}`, { token: quoted(run.say, round.drafted[index].text) }));
  const numbers = button.querySelector(".sealed") ?? button.appendChild(make("span", { class: "m sealed" }));
  numbers.replaceChildren(...knownNumbers(run, round.drafted[index], pending));
}

/**
 * q once drafted, p once the target has looked; of a greedy round, whose p is 0 or 1, the models' own.
 *
 * @param {Run} run @param {DraftedToken} token @param {Pending} pending
 */
export function knownNumbers(run, token, pending) {
  const { shares } = token; // at another temperature
  const raw = isGreedy(run, token);
  const q = raw ? token.q_raw : token.q;
  const parts = q === null ? [] : [make("span", { class: "q", text: `q ${shares?.q ? briefly(shares.q) : brief(q)}` })];
  if (pending === "passed") parts.push(make("span", { class: "p", text: `p ${shares?.p ? briefly(shares.p) : brief(raw ? token.p_raw : token.p)}` }));
  return parts.flatMap((part, i) => (i ? [" ", part] : [part]));
}
