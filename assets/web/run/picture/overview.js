// Draws a round as one picture, from the text through the draft, one target pass, the coins and what is drawn from, to the
// new text. Every piece is a button that leads into its close-up, and says in a sentence what it shows.

import { make } from "../../shared/dom.js";
import { SYMBOL, quoted, showToken } from "../../shared/tokens.js";
import { pairLegend, residualBars } from "./distribution.js";
import { drawnLine } from "./draw_line.js";
import { evidence } from "./evidence.js";
import { sealedAt, sentenceHere } from "../place.js";
import { acceptedIndexes, isGreedy, isRefusal, isUnknown, nextKind, wasDropped } from "../record/records.js";
import { knownNumbers, tell } from "../list/seals.js";
import { committedIn, knownAt } from "../record/stages.js";
import { saySupposed } from "./supposing.js";
import { treeBox } from "../list/tree_box.js";
import { isTree } from "../record/trees.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Piece} Piece */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").Known} Known */

const ROWS = 3; // tokens in a piece's bars

const TAIL = 60; // tokens of the text's end: more than its line can hold

/**
 * @param {View} view @param {Spot} spot the token that is looked at, and told about
 * @param {Round | null} round null: nothing of it is there yet
 * @returns {Node[]}
 */
export function overview(view, spot, round) {
  const index = spot.round;
  const { at } = view.playback;
  const known = at && at.round === index ? knownAt(view.run, index, at.stage) : null;
  const before = piece(view, "text", "next", view.say("playback.piece_text"), "words", [...tail(view, index, 0), ...(round ? [pairLegend(view.run, round.drafted[0])] : [])]);
  if (!round) return [before];
  const count = known ? committedIn(view.run, index, known) : round.emitted.length;
  const supposed = saySupposed(view, spot);
  const after = piece(view, "new", "next", view.say("playback.piece_new", { n: count }), "words", supposed === null ? tail(view, index, count) : guess(view, index, round));
  const told = make("div", { class: supposed === null ? "caption" : "caption supposed", part: "caption" }, make("p", { text: supposed ?? sentenceHere(view, spot) }));
  return [before, isTree(round) ? branches(view, index, round, known) : columns(view, index, round), told, after];
}

/** @param {View} view @param {Piece} name @param {Index} index @param {string} label @param {string} kind @param {(Node | string)[]} children @param {string} [stage] */
function piece(view, name, index, label, kind, children, stage) {
  const keys = name === "coin" ? "Shift+ArrowLeft Shift+ArrowRight" : null; // moving.js
  return make("button", { type: "button", class: `piece ${kind}`, "aria-keyshortcuts": keys, "data-piece": name, "data-index": index, "aria-label": label, tabindex: "-1" },
    make("span", { class: "stage", text: view.say(`playback.stage_${stage ?? name}`) }), ...children);
}

/** A chain: a column a token, a row a stage, and the target's own token last. @param {View} view @param {number} number @param {Round} round */
function columns(view, number, round) {
  const table = make("div", { class: round.drafted.length ? "table" : "table alone" });
  table.append(...(round.drafted.length ? ["draft", "pass", "coin"] : []).map((name) => make("span", { class: "stage heading", title: view.say(`playback.about_${name}`), text: view.say(`playback.stage_${name}`) })));
  table.style.setProperty("--n", String(round.drafted.length));
  round.drafted.forEach((_, index) => table.append(...draftPieces(view, number, round, index)));
  table.append(...nextPieces(view, number, round));
  return table;
}

/** A tree: its chips carry draft, pass and coin. @param {View} view @param {number} number @param {Round} round @param {Known | null} known */
function branches(view, number, round, known) {
  const tree = treeBox(view.run, number, round);
  tell(view.run, tree, number, known);
  for (const chip of tree.querySelectorAll(".chip")) chip.setAttribute("data-piece", "draft");
  return make("div", { class: "forest" }, make("div", { class: "grove" }, tree), make("div", { class: "table alone" }, ...nextPieces(view, number, round)));
}

/** A draft token's three. @param {View} view @param {number} number @param {Round} round @param {number} index */
function draftPieces(view, number, round, index) {
  const { run } = view;
  const spot = { round: number, index };
  const token = round.drafted[index];
  const pending = sealedAt(view, spot);
  const kind = pending ? `sealed ${pending === "unborn" ? "unborn" : ""}` : `${token.outcome} ${wasDropped(round, index) ? "dropped" : ""}`;
  const said = sentenceHere(view, spot);
  const { bars, coin } = evidence(view, spot, ROWS);
  const heard = labelOf(bars);
  const verdict = pending ? "" : `${SYMBOL[token.outcome]} ${run.say(isGreedy(run, token) && token.outcome === "accepted" ? "rounds.match" : `rounds.${token.outcome}`)}`;
  const title = isUnknown(token) && run.say("rounds.unknown_token");
  return [
    piece(view, "draft", index, said, `drafted ${kind}`, [showToken(run.say, make("span", { class: "w", title }), token.text),
      make("span", { class: "m" }, ...knownNumbers(run, token, bars.length ? "passed" : "drafted"))]),
    piece(view, "pass", index, `${quoted(run.say, token.text)}: ${heard}`, `passed ${kind}`, small(bars)),
    piece(view, "coin", index, saySupposed(view, spot) ?? said, `flipped ${kind}`, [...small(coin), verdictOf(verdict)]),
  ];
}

/** A word as large as its column allows (picture.css). @param {string} text */
function verdictOf(text) {
  const node = make("span", { class: "verdict", text });
  node.style.setProperty("--letters", String(text.length || 1));
  return node;
}

/** Where the target draws itself. @param {View} view @param {number} number @param {Round} round */
function nextPieces(view, number, round) {
  const { run } = view;
  const spot = /** @type {Spot} */ ({ round: number, index: "next" });
  const pending = sealedAt(view, spot);
  const kind = nextKind(round);
  const { bars: both, draw } = kind === "open" ? { bars: [], draw: [] } : evidence(view, spot, ROWS);
  const left = both.length && !round.next.unknown ? residualBars(run, round, !pending, ROWS) : [];
  const bars = left.length ? left : both;
  const heard = labelOf(bars);
  const name = run.say(`rounds.${kind}`);
  const token = pending ? [] : [make("span", { class: "drawn" }, round.next.unknown ? make("span", { class: "w", text: "?" }) : showToken(run.say, make("span", { class: "w" }), round.next.text),
    make("span", { class: "m" }, SYMBOL[kind], make("span", { class: "kind", text: ` ${name}` })))];
  return [
    piece(view, "pass", "next", `${name}: ${heard}`, `passed next ${pending ? "sealed" : kind}`, small(bars), isRefusal(run, round, "next") && bars.length ? "residual" : "own"),
    piece(view, "coin", "next", saySupposed(view, spot) ?? sentenceHere(view, spot), `flipped next ${pending ? "sealed unborn" : kind} ${wasDropped(round, "next") ? "dropped" : ""}`,
      [...(draw.length || round.next.unknown ? drawnLine(round, !pending) : []), ...token], "draw"),
  ];
}

/** @param {any[]} nodes */
const pictures = (nodes) => nodes.filter((node) => node.matches("[role=img]"));

/** @param {string} text */
const inOneLine = (text) => text.replace(/\r?\n/g, "↵");

/** The text as it would stand. @param {View} view @param {number} number @param {Round} round */
function guess(view, number, round) {
  const { next, drafted } = round;
  const fresh = (/** @type {string} */ kind, /** @type {string} */ text) => make("span", { class: `t fresh ${kind}`, text: inOneLine(text) });
  const [box] = tail(view, number, 0);
  box.firstElementChild?.append(...acceptedIndexes(round).map((index) => fresh("accepted", drafted[index].text)), fresh(nextKind(round), next.unknown ? " ?" : next.text));
  return [box];
}

/** Of a close-up's pictures, those that can be seen from afar; their buttons say what they show. @param {Node[]} nodes */
const small = (nodes) => pictures(nodes).map((node) => {
  for (const name of ["part", "role", "aria-label"]) node.removeAttribute(name);
  return node;
});

/** What the bars say aloud. @param {Node[]} bars */
const labelOf = (bars) => pictures(bars).map((node) => node.getAttribute("aria-label")).join("");

/**
 * The end of the text as it stood after `count` tokens of a round, tinted like the text itself; its last tokens, those of
 * the round, stand out. In the overview it is one line, with its breaks as signs, whose end is seen.
 *
 * @param {View} view @param {number} round @param {number} count
 */
export function tail(view, round, count, most = TAIL) {
  const spans = (view.spans[round] ?? []).slice(0, count);
  for (let index = round - 1; index >= 0 && spans.length < most; index -= 1) spans.unshift(...(view.spans[index] ?? []));
  const written = most === TAIL ? inOneLine : String;
  const copies = spans.slice(-most).map((span) => make("span", { class: `t ${span.dataset.kind ?? "missing"}${Number(span.dataset.round) === round ? " fresh" : ""}`, text: written(span.textContent ?? "") }));
  const prompt = spans.length < most ? [make("span", { class: "prompt", text: written(view.run.start.prompt ?? "") })] : [];
  return [make("span", { class: "tail", dir: "auto", translate: "no" }, make("span", {}, ...prompt, ...copies))];
}
