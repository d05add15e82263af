// The reader's place in a run, and what is known and said there.

import { plainNumber } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";
import { acceptedIndexes, isGreedy, isRefusal, nextKind } from "./record/records.js";
import { sentence, unbroken } from "./record/sentences.js";
import { committedIn, knownAt, pendingOf, stageAt, stagesOf } from "./record/stages.js";

/** @typedef {import("./data.js").Run} Run */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Spot} Spot */
/** @typedef {import("./types.js").Known} Known */
/** @typedef {import("./types.js").Round} Round */
/** @typedef {import("./types.js").Stage} Stage */
/** @typedef {import("./types.js").Place} Place */
/** @typedef {import("./types.js").Chunk} Chunk */

/** Where a chip stands. @param {HTMLElement} node @returns {Spot} */
export const place = (node) => ({
  round: Number(node.dataset.round),
  index: node.dataset.index === "next" ? "next" : Number(node.dataset.index),
});

export const START = Object.freeze({ round: 0, stage: 0 });

/** @param {Run} run @param {number} index */
export const endOf = (run, index) => ({ round: index, stage: stagesOf(run, run.rounds[index]).length });

/** @param {View} view */
export const lastPlace = (view) => (view.drawn ? endOf(view.run, view.drawn - 1) : START);

/** @param {Place | null} a @param {Place | null} b */
const samePlace = (a, b) => a === b || (a !== null && b !== null && a.round === b.round && a.stage === b.stage);

/** Whether nothing is left to play: the end of what has arrived. @param {View} view */
export const atEnd = (view) => view.playback.at === null || samePlace(view.playback.at, lastPlace(view));

/** @param {View} view */
export const placeRounds = (view) => (view.playback.at?.stage ? view.playback.at.round + 1 : 0);

/** The token that a place is about. @param {Run} run @param {Place} place */
export function spotOf(run, { round, stage }) {
  if (!stage || !run.rounds[round]) return null;
  return { round, index: stageAt(run, { round, stage }).index };
}

/**
 * The token to look at: that of the reader's place, or the one that is asked about. Which token ends a draft that is judged
 * at once is not told by asking.
 *
 * @param {View} view @param {Place} at
 */
export function spotHere(view, at) {
  const { asking } = view.playback;
  return spotOf(view.run, asking && !stageAt(view.run, asking).whole ? asking : at);
}

/** A block of rows that are all to come is not built: nobody could see it. @param {View} view @param {Chunk} chunk */
export const isLater = (view, chunk) => view.playback.at !== null && chunk.first > view.playback.at.round;

/**
 * What the reader's place still seals of a spot: "unborn", "drafted", "passed", or null.
 *
 * @param {View} view @param {Spot} spot
 */
export function sealedAt(view, spot) {
  const { at } = view.playback;
  if (!at || spot.round !== at.round || !view.run.rounds[spot.round]) return null;
  return pendingOf(knownAt(view.run, at.round, at.stage), spot.index);
}

/** Whether a spot's round is over at the reader's place, and its next token drawn. @param {View} view @param {Spot} spot */
export const isDrawn = (view, { round }) => sealedAt(view, { round, index: "next" }) === null;

/** Text up to here: { round, count }: all tokens of the rounds before, and so many of this one. @param {View} view */
export function frontier(view) {
  const { at } = view.playback;
  if (!at) return { round: view.drawn, count: 0 };
  return { round: at.round, count: committedIn(view.run, at.round, knownAt(view.run, at.round, at.stage)) };
}

/** How many rounds are over at the reader's place. @param {View} view */
export const roundsOver = ({ playback: { at }, run, drawn }) => (!at ? drawn : at.stage === endOf(run, at.round).stage ? at.round + 1 : at.round);

/** For each new round of the text: the counts up to its end. @param {View} view @param {number} index */
export function noteRound(view, index) {
  const round = view.run.rounds[index];
  const before = view.playback.sums[index];
  view.playback.sums[index + 1] = {
    accepted: before.accepted + (round ? acceptedIndexes(round).length : 0),
    judged: before.judged + (round ? round.drafted.filter((token) => token.outcome !== "discarded").length : 0),
    holes: before.holes + (round ? 0 : 1),
  };
}

/** The text is about to be drawn from its beginning. @param {View} view */
export function forgetDrawn(view) {
  Object.assign(view.playback, { sums: [{ accepted: 0, judged: 0, holes: 0 }], shown: null });
}

/**
 * The headline figures at the reader's place, by the definitions of specviz/records/metrics.py, over the rounds that are over.
 * Speeds are of the whole run: clocks were read once, at its own pace.
 *
 * @param {View} view
 */
export function figuresHere(view) {
  const { at } = view.playback;
  if (!at) return view.run.figures;
  const over = roundsOver(view);
  const { accepted, judged, holes } = view.playback.sums[over] ?? view.playback.sums.at(-1);
  const known = holes === 0;
  return {
    ...view.run.figures,
    acceptance_length: known && over ? 1 + accepted / over : null,
    acceptance_rate: known && judged && view.run.figures.acceptance_rate !== null ? accepted / judged : null,
  };
}

/** Where the reader is, in a few words: "Round 3 of 31: draft token 2 of 4, ‹ dragon›". @param {View} view */
export function placeLabel(view) {
  const { at } = view.playback;
  const count = view.drawn;
  if (!count) return view.say("playback.nothing");
  if (!at) return view.say(view.run.phase === "running" ? "playback.at_live" : "playback.at_end", { n: count });
  if (!at.stage) return view.say("playback.at_start", { n: count });
  const known = knownAt(view.run, at.round, at.stage);
  return view.say(stageKey(view.run, "place", at.round, known), { round: at.round + 1, count, ...stageValues(view.run, at.round, known) });
}

/**
 * The text about a stage: PREFIX_draft, _pass, _plain_pass, _accepted, _rejected, _whole, _recovered, _bonus, _plain, _missing.
 *
 * @param {Run} run @param {string} prefix @param {number} index @param {Known} known
 */
function stageKey(run, prefix, index, { stage }) {
  const round = run.at(index);
  const { kind, index: at, whole } = /** @type {Stage} */ (stage);
  const words = {
    missing: () => "missing",
    draft: () => "draft",
    pass: () => (round.drafted.length ? "pass" : "plain_pass"),
    decide: () => (whole ? "whole" : round.drafted[Number(at)].outcome),
    next: () => nextKind(round),
  };
  return `playback.${prefix}_${words[kind]()}`;
}

/** @param {Run} run @param {number} index @param {Known} known */
function stageValues(run, index, { stage, number, of }) {
  const round = run.rounds[index];
  if (!round || !stage) return {};
  const token = stage.index === "next" ? round.next : round.drafted[stage.index];
  return { token: quoted(run.say, token.text), number, of, n: round.drafted.length, kept: acceptedIndexes(round).length };
}

/**
 * What happened at a spot as far as the reader's place knows; later than that it is `sentence`.
 *
 * @param {View} view @param {Spot} spot
 */
export function sentenceHere(view, spot) {
  const known = view.playback.at && knownAt(view.run, view.playback.at.round, view.playback.at.stage);
  const round = view.run.at(spot.round);
  const pending = sealedAt(view, spot);
  if (!pending || !known) return sentence(view.run, round, spot.index, isDrawn(view, spot));
  if (spot.index === "next") return view.say(known.judged ? "playback.say_unborn" : dueKey(view.run, round));
  const token = round.drafted[spot.index];
  if (pending === "unborn") return view.say("playback.say_unborn");
  const raw = isGreedy(view.run, token);
  const [q, p] = raw ? [token.q_raw, token.p_raw] : [token.q, token.p];
  const untold = Boolean(view.run.start.engine) && (p === null || q === null); // another engine need not record them
  const values = { token: quoted(view.say, token.text), q: numberOr(q), p: numberOr(p) };
  const drafted = untold && q === null ? "_elsewhere" : raw ? (q === null ? "_copy" : "_greedy") : q === 1 ? "_sure" : "";
  if (pending === "drafted") return unbroken(view.say(`playback.say_draft${drafted}`, values));
  const opening = known.stage?.kind === "pass" ? `${view.say("playback.say_pass", { n: round.drafted.length })} ` : "";
  return unbroken(`${opening}${view.say(`playback.say_passed${untold ? "_elsewhere" : raw ? "_greedy" : ""}`, values)}`);
}

/** What the next token will be drawn from. @param {Run} run @param {Round} round */
function dueKey(run, round) {
  if (run.start.engine && !round.top.length) return "playback.say_due_elsewhere";
  if (!round.drafted.length) return "playback.say_plain_pass";
  if (run.start.greedy) return "playback.say_due_greedy";
  return isRefusal(run, round, "next") ? "playback.say_due_residual" : "playback.say_due_own";
}

/** @param {number | null} x */
const numberOr = (x) => (x === null ? "–" : plainNumber(x));
