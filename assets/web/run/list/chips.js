// Draws a chip: a token with its verdict, the numbers it came from, and the coin.

import { make } from "../../shared/dom.js";
import { brief, plainNumber } from "../../shared/numbers.js";
import { SYMBOL, quoted, showToken } from "../../shared/tokens.js";
import { placeInTree, sourceName } from "../record/names.js";
import { isBlock, isChosen, isGreedy, isJudged, isLossy, isUnknown, nextKind, rowOf, wasDropped } from "../record/records.js";
import { isTree } from "../record/trees.js";

/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").DraftedToken} DraftedToken */

/** Marks a chip as the one that is looked at; nothing where it is not drawn. @param {Element | null} button */
export function markChosen(button) {
  button?.classList.add("chosen");
  button?.setAttribute("aria-pressed", "true");
}

/**
 * @param {Run} run @param {number} index @param {Index} position @param {string} kind @param {string} text
 * @param {Node[]} lines @param {string} label @param {boolean} dropped
 */
export function chip(run, index, position, kind, text, lines, label, dropped) {
  const button = make("button", { type: "button", class: `chip ${kind}`, part: "chip", tabindex: "-1", "aria-label": label,
    "data-round": index, "data-index": position, "data-outcome": position === "next" ? null : kind,
    "data-kind": position === "next" ? kind : null, "data-dropped": dropped });
  button.append(showToken(run.say, make("span", { class: "w" }), text), ...lines);
  return button;
}

/** @param {Run} run @param {number} index @param {number} i @param {Round} round */
export function draftChip(run, index, i, round) {
  const token = round.drafted[i];
  const button = chip(run, index, i, token.outcome, token.text, chipLines(run, round, token), chipLabel(run, round, i), wasDropped(round, i));
  if (isUnknown(token)) button.title = run.say("rounds.unknown_token");
  return button;
}

/**
 * A verdict at a glance: its sign, the numbers it came from, and the coin.
 *
 * @param {Run} run @param {Round} round @param {DraftedToken} token
 */
function chipLines(run, round, token) {
  const sign = SYMBOL[token.outcome];
  if (isGreedy(run, token) && token.outcome !== "discarded") {
    return [line(`${sign} ${run.say(token.outcome === "accepted" ? "rounds.match" : "rounds.no_match")}`),
      line(`${run.say("rounds.raw")} ${token.q_raw === null ? "" : `q ${brief(token.q_raw)} `}p ${brief(token.p_raw)}`)];
  }
  if (isBlock(run) && isJudged(token)) return [line(`${sign} h ${brief(token.accept_prob)} u ${brief(token.u)}`), coinBar(token)];
  if (token.outcome === "discarded") return [line(`┄ ${run.say("rounds.discarded")}`)];
  if (isLossy(round)) return [line(`${sign} p ${brief(token.p)}`)];
  const left = token.p_left == null ? `p ${brief(token.p)}` : `p′ ${brief(token.p_left)}`;
  return [line(`${sign} q ${brief(token.q)} ${left}`), coinBar(token)];
}

/**
 * The lines of every verdict that a draft token may get, unseen: they keep its chip as wide as the widest, whichever
 * comes.
 *
 * @param {Run} run @param {Round} round @param {number} index
 */
export function anyVerdict(run, round, index) {
  const token = round.drafted[index];
  const outcomes = /** @type {const} */ (["accepted", "rejected", "discarded"]);
  const lines = outcomes.flatMap((outcome) => chipLines(run, round, { ...token, outcome }));
  return make("span", { class: "any", "aria-hidden": "true" }, ...lines.filter((node) => /** @type {Element} */ (node).matches(".m")));
}

/** @param {string} text */
export const line = (text) => make("span", { class: "m", text });

/** @param {DraftedToken} token */
function coinBar(token) {
  const bar = make("span", { class: "coin", "aria-hidden": "true" });
  const pass = make("i");
  pass.style.width = `${100 * (token.accept_prob ?? 0)}%`;
  bar.append(pass);
  if (token.u !== null) {
    const tick = make("s");
    tick.style.left = `${100 * token.u}%`;
    bar.append(tick);
  }
  return bar;
}

/** @param {Run} run @param {Round} round @param {number} index */
function chipLabel(run, round, index) {
  const token = round.drafted[index];
  const where = isTree(round) ? [placeInTree(run, round, index)] : [];
  const by = token.source == null ? [] : [run.say("rounds.label_source", { source: sourceName(run, token.source) })];
  const unknown = isUnknown(token) ? [run.say("rounds.unknown_token")] : [];
  return [quoted(run.say, token.text), ...unknown, run.say(`rounds.${token.outcome}`), verdictLabel(run, round, token), ...where, ...by].join(", ");
}

/** @param {Run} run @param {Round} round @param {DraftedToken} token */
function verdictLabel(run, round, token) {
  const block = isBlock(run) && isJudged(token);
  if (token.outcome === "discarded" && !block) return run.say("rounds.label_unjudged");
  if (isGreedy(run, token)) return run.say(token.outcome === "accepted" ? "rounds.label_match" : "rounds.label_no_match");
  if (isLossy(round)) return run.say("rounds.label_typical", { p: plainNumber(token.p) });
  const numbers = { q: plainNumber(token.q), p: plainNumber(token.p), u: plainNumber(token.u), threshold: plainNumber(token.accept_prob) };
  if (token.p_left == null) return run.say("rounds.label_coin", numbers);
  return run.say("rounds.label_coin_left", { ...numbers, left: plainNumber(token.p_left) });
}

/** @param {Run} run @param {number} index @param {Round} round */
export function nextChip(run, index, round) {
  const { next } = round;
  const kind = nextKind(round);
  const greedy = isChosen(run, next);
  const raw = greedy ? (rowOf(round, "next").p_raw ?? []).find(([id]) => id === next.id)?.[1] : undefined;
  const lines = [];
  const from = kind === "recovered" && isLossy(round) ? "target" : kind;
  if (!greedy) lines.push(line(`${SYMBOL[kind]} ${run.say(`rounds.chip_${from}`, { prob: brief(next.prob) })}`));
  else {
    lines.push(line(`${SYMBOL[kind]} ${run.say(kind === "recovered" ? "rounds.choice" : `rounds.${kind}`)}`));
    if (raw !== undefined) lines.push(line(`${run.say("rounds.raw")} p ${brief(raw)}`));
  }
  const label = run.say("rounds.label_next", { token: quoted(run.say, next.text), kind: run.say(`rounds.${kind}`), prob: plainNumber(raw ?? next.prob) });
  return chip(run, index, "next", kind, next.text, lines, label, wasDropped(round, "next"));
}

/** Why the drafter stopped before γ. @param {Run} run @param {Round} round */
export function early(run, round) {
  if (round.confidence == null) return [];
  return [make("span", { class: "early", part: "early", text: run.say("rounds.early", { confidence: plainNumber(round.confidence) }) })];
}

/** Why γ was chosen as it was: one token more would bring less than is made in the time it takes. @param {Run} run @param {Round} round */
export function reason(run, round) {
  if (!round.choice) return [];
  const { depth, speed, kept, cost, behind } = round.choice;
  const said = behind ? "choice_behind" : kept === null || cost === null ? "choice_most" : depth ? "choice_depth" : "choice_none";
  const known = { depth, kept: plainNumber(kept ?? 0), made: plainNumber((speed ?? 0) * (cost ?? 0)) };
  return [make("span", { class: "reason", part: "reason", text: run.say(`rounds.${said}`, known) })];
}
