// A round on a sheet, for a picture or a clip of it: the same record as the picture on the page, in less detail.

import { EDGE, WIDTH } from "../../moment/canvas.js";
import { brief, compared, plainNumber } from "../../shared/numbers.js";
import { SYMBOL, onOneLine, tokenLabel } from "../../shared/tokens.js";
import { endOf, lastPlace, placeLabel, sentenceHere, spotOf } from "../place.js";
import { chipOfEmitted, flippedAt, isGreedy, isRefusal, nextKind, rowOf, tokenText } from "../record/records.js";
import { committedIn, knownAt, pendingOf, stagesOf } from "../record/stages.js";
import { isTree, pathOf, refusedHere } from "../record/trees.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Known} Known */
/** @typedef {{ sheet: import("../../moment/canvas.js").Sheet, view: View, index: number, round: import("../types.js").Round, at: number }} Scene `at`: stages that have happened; between two, the next is coming in */

const FULL = WIDTH - 2 * EDGE;
const GUTTER = 128; // px, the names of the rows
const NEXT = 250; // px, the target's own column
const MOST = 8; // draft tokens that have room
const ROWS = { draft: 196, pass: 296, coin: 500 }; // px from the top
const COMING = 0.35; // seconds that something takes to come in

/** @type {Record<string, string>} the colour of each verdict */
const INK = { accepted: "ok", rejected: "no", discarded: "off", recovered: "fix", bonus: "bonus", plain: "plain" };

/**
 * The round that is looked at, as it stands at the reader's place, and how it came about.
 *
 * @param {View} view @param {Scene["sheet"]} sheet @returns {import("../../moment/moment.js").Scene | null}
 */
export function roundScene(view, sheet) {
  const place = view.playback.at ?? (view.chosen ? endOf(view.run, view.chosen.round) : lastPlace(view));
  const round = view.run.rounds[place.round];
  if (!round) return null;
  const { length } = stagesOf(view.run, round);
  const dwell = Math.min(1.4, 8.5 / length);
  const draw = (/** @type {number} */ at) => drawRound({ sheet, view, index: place.round, round, at });
  return {
    name: `specviz-round-${place.round + 1}`,
    label: placeLabel(readerAt(view, place.round, place.stage)),
    seconds: dwell * length,
    still: () => draw(place.stage),
    at: (second) => draw(Math.min(length, Math.floor(second / dwell) + Math.min(1, (second % dwell) / COMING))),
  };
}

/** The view, as for a reader at that stage. @param {View} view @param {number} round @param {number} stage @returns {View} */
const readerAt = (view, round, stage) => Object.create(view, { playback: { value: { ...view.playback, at: { round, stage }, asking: null } } });

/** How much is there, from 0 to 1, of what is so from some stage on. @param {Scene} scene @param {(known: Known) => boolean} isSo */
function share({ view, index, round, at }, isSo) {
  const before = stagesOf(view.run, round).findIndex((_, stage) => isSo(knownAt(view.run, index, stage + 1)));
  return Math.min(1, Math.max(0, at - before));
}

/** @param {Scene} scene */
function drawRound(scene) {
  const { sheet, view, index, round, at } = scene;
  const { run, say } = view;
  const stage = Math.ceil(at);
  const reader = readerAt(view, index, stage);
  sheet.clear([run.start.drafter && `${run.start.drafter}, γ = ${run.start.num_draft_tokens}`, run.start.settings, run.pair || run.start.pair].filter(Boolean).join(" · "));
  sheet.text(placeLabel(reader), EDGE, 52, { colour: "soft", width: FULL });
  drawText(scene);
  // Of a tree: the kept path, and what was refused at its end.
  const refused = isTree(round) ? refusedHere(round).map((token) => round.drafted.indexOf(token)) : [];
  const path = [...pathOf(round).slice(0, -1), ...refused].map(Number);
  const end = path.findIndex((i) => round.drafted[i].outcome === "rejected");
  const first = Math.max(0, Math.min(end < 0 ? path.length : end - MOST + 2, path.length - MOST));
  const shown = path.slice(first, first + MOST);
  if (shown.length < round.drafted.length) sheet.text(`${shown.length} / ${round.drafted.length}`, EDGE, ROWS.draft + 50, { size: 16, colour: "soft" });
  const wide = Math.min(190, (FULL - GUTTER - NEXT) / shown.length);
  for (const [name, top] of shown.length ? Object.entries(ROWS) : []) sheet.text(say(`playback.stage_${name}`), EDGE, top + 26, { size: 17, colour: "soft", width: GUTTER - 10 });
  shown.forEach((token, i) => drawDraft(scene, token, EDGE + GUTTER + i * wide, wide - 14));
  drawNext(scene, shown.length ? EDGE + GUTTER + shown.length * wide + 10 : EDGE);
  const spot = spotOf(run, { round: index, stage });
  sheet.paragraph(spot ? sentenceHere(reader, spot) : say("playback.say_start"), 608);
}

/** The end of the text. What is to come in has its place: nothing moves. @param {Scene} scene */
function drawText(scene) {
  const { sheet, view, index, round } = scene;
  const type = /** @type {const} */ ({ size: 27, font: "serif" });
  const earlier = view.run.rounds.slice(0, index).map((one) => one?.pieces.join("") ?? " […] ").join("");
  const before = [...`${view.run.start.prompt ?? ""}${earlier}`].slice(-400).join("");
  const all = [before, ...round.pieces].map((text) => onOneLine(view.say, text));
  const shares = all.map((_, i) => (i ? share(scene, (known) => committedIn(view.run, index, known) >= i) : 1));
  // Arabic and Hebrew run the other way, and letters join across tokens: then it is one piece.
  const parts = /[\u0590-\u08ff]/.test(all.join("")) ? [all.filter((_, i) => shares[i]).join("")] : all;
  const whole = parts.join("");
  sheet.lines(whole, FULL, type).slice(-2).forEach(([from, to], line) => {
    const y = 102 + 40 * line;
    let [x, start] = [EDGE, 0];
    parts.forEach((part, i) => {
      const text = part.slice(Math.max(0, from - start), Math.max(0, to - start));
      const colour = !i ? "ink" : INK[chipOfEmitted(round, i - 1) === "next" ? nextKind(round) : "accepted"];
      const width = sheet.measure(text, type);
      sheet.fading(text ? shares[i] : 0, () => {
        if (i) sheet.box(x, y - 26, width, 35, { fill: `${colour}-bg`, radius: 4 });
        sheet.text(text, x, y, { ...type, colour });
      });
      [x, start] = [x + width, start + part.length];
    });
  });
}

/** A draft token's column: what was drafted, both probabilities, the coin, the verdict. @param {Scene} scene @param {number} i @param {number} x @param {number} wide */
function drawDraft(scene, i, x, wide) {
  const { sheet, view, round } = scene;
  const token = round.drafted[i];
  const raw = isGreedy(view.run, token);
  const [ink, name, middle] = [INK[token.outcome], tokenLabel(view.say, token.text), x + wide / 2];
  const passed = share(scene, (known) => ["passed", null].includes(pendingOf(known, i)));
  const judged = share(scene, (known) => pendingOf(known, i) === null);
  sheet.fading(share(scene, (known) => pendingOf(known, i) !== "unborn"), () => {
    if (judged < 1) chip(sheet, name, x, ROWS.draft, wide, "card", "edge", "ink");
    column(sheet, "q", raw ? token.q_raw : token.q, x + wide * 0.54, wide * 0.3, 1);
  });
  sheet.fading(passed, () => column(sheet, "p", raw ? token.p_raw : token.p, x + wide * 0.16, wide * 0.3, passed));
  sheet.fading(judged, () => {
    const thrown = token.outcome === "discarded";
    chip(sheet, name, x, ROWS.draft, wide, thrown ? "bg" : `${ink}-bg`, ink, ink, thrown);
    sheet.text(`${SYMBOL[token.outcome]} ${wide < 110 ? "" : view.say(`rounds.${raw && ink === "ok" ? "match" : token.outcome}`)}`.trim(), middle, ROWS.coin + 76, { size: 18, bold: true, colour: ink, align: "center", width: wide });
    const flipped = flippedAt(round, i);
    if (!flipped) return;
    const [u, threshold] = compared(flipped.u, flipped.accept_prob);
    line(sheet, x, ROWS.coin + 26, wide, flipped.u, u, [[0, flipped.accept_prob, "ok"], [flipped.accept_prob, 1, "no"]], judged);
    sheet.text(`${flipped.u < flipped.accept_prob ? "<" : "≥"} ${threshold}`, middle, ROWS.coin + 52, { size: 15, colour: "soft", align: "center", width: wide });
  });
}

/** The target's own column: what it draws from, once all verdicts are out, and the token. @param {Scene} scene @param {number} x */
function drawNext(scene, x) {
  const { sheet, view, round } = scene;
  const { run, say } = view;
  const { p, p_raw: raw, residual } = rowOf(round, "next");
  const refused = isRefusal(run, round, "next") && residual;
  const listed = [...((run.start.greedy ? raw : refused ? residual : null) ?? p)].sort((a, b) => b[1] - a[1]).slice(0, 4);
  const [kind, { u, line: pieces = [] }] = [nextKind(round), round.next];
  const drawn = share(scene, (known) => known.complete);
  sheet.fading(share(scene, (known) => known.passed && known.judged === null), () => {
    sheet.text(say(`playback.stage_${refused ? "residual" : "own"}`), x, ROWS.draft + 26, { size: 17, colour: "soft", width: NEXT });
    listed.forEach(([id, part], i) => {
      const y = ROWS.draft + 62 + 44 * i;
      sheet.text(tokenLabel(say, tokenText(run, id)), x, y, { size: 19, font: "serif", width: 110 });
      sheet.box(x + 118, y - 14, 78 * part, 16, { fill: refused ? "fix" : "p", radius: 3 });
      sheet.text(brief(part), x + 126 + 78 * part, y, { size: 16, colour: "soft" });
    });
  });
  sheet.fading(drawn, () => {
    if (u !== null) line(sheet, x, ROWS.draft + 256, NEXT, u, plainNumber(u), pieces.map(([id, from, to]) => [from, to, id === round.next.id ? INK[kind] : "edge"]), drawn);
    chip(sheet, tokenLabel(say, round.next.text), x, ROWS.coin + 4, NEXT, `${INK[kind]}-bg`, INK[kind], INK[kind]);
    sheet.text(`${SYMBOL[kind]} ${say(`rounds.${kind}`)}`, x + NEXT / 2, ROWS.coin + 76, { size: 18, bold: true, colour: INK[kind], align: "center" });
  });
}

/** @param {Scene["sheet"]} sheet @param {string} text @param {number} x @param {number} y @param {number} wide @param {string} fill @param {string} edge @param {string} colour */
function chip(sheet, text, x, y, wide, fill, edge, colour, dashed = false) {
  sheet.box(x, y, wide, 46, { fill, edge, dashed, radius: 10 });
  sheet.text(text, x + wide / 2, y + 31, { size: 24, font: "serif", colour, align: "center", width: wide - 14 });
}

/** A probability as a column that grows. @param {Scene["sheet"]} sheet @param {"p" | "q"} name @param {number | null} value @param {number} x @param {number} wide @param {number} grown */
function column(sheet, name, value, x, wide, grown) {
  const [foot, high] = [ROWS.pass + 152, Math.max(2, 120 * (value ?? 0) * grown)];
  sheet.box(x, foot - high, wide, high, { fill: name, radius: 3 });
  sheet.text(brief(value), x + wide / 2, foot - high - 7, { size: 16, align: "center" });
  sheet.text(name, x + wide / 2, foot + 20, { size: 16, colour: name, bold: true, align: "center" });
}

/** The line from 0 to 1 in pieces, and u, which falls onto it. @param {Scene["sheet"]} sheet @param {number} x @param {number} y @param {number} wide @param {number} u @param {string} said @param {[number, number, string][]} pieces @param {number} fallen */
function line(sheet, x, y, wide, u, said, pieces, fallen) {
  sheet.box(x, y - 6, wide, 12, { fill: "line", radius: 3 });
  for (const [from, to, fill] of pieces) sheet.box(x + wide * from, y - 6, wide * (to - from), 12, { fill });
  sheet.box(x + wide * u - 2, y - 11 - 30 * (1 - fallen), 4, 22, { fill: "ink", radius: 2 });
  sheet.text(`u = ${said}`, x + wide / 2, y - 16, { size: 16, align: "center", width: wide });
}
