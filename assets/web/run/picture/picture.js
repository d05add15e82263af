// The picture of a round: the whole of it on one screen, and a camera that goes into any of its pieces and back. It stands
// beside the list, where a close-up follows the token that is looked at, and goes over the whole window (present.js).

import { make } from "../../shared/dom.js";
import { SYMBOL } from "../../shared/tokens.js";
import { fly, slide } from "./camera.js";
import { closeup } from "./closeup.js";
import { overview, tail } from "./overview.js";
import { letCoinsMove } from "./moving.js";
import { frontier, lastPlace, spotHere } from "../place.js";
import { roundShown } from "./suppose.js";
import { drawSuppose, supposePanel } from "./supposing.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Piece} Piece */
/** @typedef {import("../types.js").Spot} Spot */

/** @typedef {{ choose(view: View, spot: Spot, how?: { pin?: boolean }): void, letGo(view: View, refocus: boolean): void }} Choosing */

/** @param {View} view @param {Choosing} choosing */
export function pictureCard(view, choosing) {
  const { say, ui } = view;
  const button = (/** @type {string} */ name, /** @type {string} */ sign, /** @type {() => void} */ click) => make("button",
    { type: "button", class: `go ${name}`, part: `picture-${name}`, "aria-label": say(`playback.${name}`), title: say(`playback.${name}`), text: sign, on: { click } });
  ui.whole = make("div", { class: "layer overview", part: "overview" });
  ui.near = make("div", { class: "layer closeup", part: "closeup", tabindex: "0" }); // it may scroll
  ui.frame = make("div", { class: "screen" }, ui.whole, ui.near);
  ui.out = button("out", "⤢", () => leave(view, choosing));
  ui.slowed = make("span", { class: "slowed", part: "slowed" });
  ui.steer = make("div", { class: "steer" }, legend(view), ui.slowed, supposePanel(view, () => drawPicture(view)), button("before", "‹", () => turn(view, choosing, "ArrowLeft")), button("after", "›", () => turn(view, choosing, "ArrowRight")), ui.out);
  ui.picture = make("section", { class: "card picture", part: "picture", "aria-label": say("rounds.picture") }, ui.steer, ui.frame);
  letCoinsMove(view, (node) => spotIn(view, node), (spot) => look(view, choosing, spot));
  ui.whole.addEventListener("click", (/** @type {any} */ event) => onPiece(view, choosing, event));
  ui.picture.addEventListener("keydown", (/** @type {any} */ event) => onPictureKey(view, choosing, event));
  new ResizeObserver(() => fitPicture(view)).observe(ui.frame);
  return ui.picture;
}

/** What the colours of text, picture and list mean. @param {View} view */
function legend({ say }) {
  const entry = (/** @type {string} */ kind, /** @type {string} */ sign) => make("span", { title: say(`rounds.about_${kind}`) }, `${sign} `, make("b", { class: kind, text: say(`rounds.${kind}`) }));
  return make("div", { class: "legend", part: "legend" }, ...["accepted", "rejected", "recovered", "bonus", "discarded", "plain"].map((kind) => entry(kind, SYMBOL[kind] ?? "┄")));
}

/** Out of a close-up, and away from the token that was pinned for it. @param {View} view @param {Choosing} choosing */
function leave(view, choosing) {
  zoomOut(view);
  choosing.letGo(view, false);
}

/** The round that the picture shows, and its token that is looked at. @param {View} view @returns {Spot | null} */
export function spotShown(view) {
  if (!view.presentation.open) return view.chosen;
  const at = view.playback.at ?? lastPlace(view);
  if (view.chosen?.round === at.round) return view.chosen;
  return spotHere(view, at) ?? { round: at.round, index: "next" };
}

/** Draws the layer that is seen. @param {View} view */
export function drawPicture(view) {
  const { ui, picture } = view;
  const spot = spotShown(view);
  const near = picture.piece !== null && isBegun(view, spot);
  if (!near) drawWhole(view);
  else {
    ui.near.replaceChildren(...(isText(picture.piece) ? pageOf(view, spot) : closeup(view, spot)));
    ui.near.dataset.piece = picture.piece;
    const token = `${view.run.key} ${spot.round} ${spot.index}`;
    if (picture.token !== token) ui.near.scrollTop = 0; // another token is read from its beginning
    picture.token = token;
  }
  ui.picture.toggleAttribute("data-near", near);
  ui.whole.inert = near;
  ui.near.inert = !near;
  drawSuppose(view, spot);
  fitPicture(view);
}

/** Whether there is a round to show at the reader's place. @param {View} view @param {Spot | null} spot @returns {spot is Spot} */
const isBegun = (view, spot) => Boolean(spot && view.run.rounds[spot.round] && !(view.presentation.open && view.playback.at?.stage === 0));

/** The whole round anew; the focus stays on its piece. @param {View} view */
function drawWhole(view) {
  const { ui, picture } = view;
  const spot = spotShown(view);
  const held = view.shadow.activeElement;
  const focused = held && ui.whole.contains(held) ? pieceOf(held) : null;
  if (isBegun(view, spot)) {
    ui.whole.replaceChildren(...overview(view, spot, roundShown(view, spot.round)));
    mark(view, spot, focused ?? { piece: picture.piece ?? "draft", index: spot.index });
    if (focused) nodeOf(ui.whole, focused)?.focus({ preventScroll: true });
    return;
  }
  const { presentation: { open }, playback: { at, predicting } } = view;
  const tells = (open && spot) || (predicting && at); // how to predict is said in the bar
  const said = !tells ? "rounds.invitation" : at?.stage ? "playback.say_missing" : "playback.say_start";
  ui.whole.replaceChildren(...(open ? overview(view, { round: 0, index: "next" }, null) : []), make("p", { class: "say", part: "invitation", text: view.say(said) }));
}

/** @param {Piece | null} piece */
const isText = (piece) => piece === "text" || piece === "new";

/** More of the text than the overview's line holds. @param {View} view @param {Spot} spot */
function pageOf(view, { round }) {
  const end = view.playback.at ? frontier(view) : { round, count: view.run.at(round).emitted.length };
  const count = view.picture.piece === "text" ? 0 : end.round === round ? end.count : view.run.at(round).emitted.length;
  const name = view.picture.piece === "text" ? "piece_text" : "piece_new";
  return [make("h3", { part: "picture-title", text: view.say(`playback.${name}`, { n: count }) }), make("p", { class: "page" }, ...tail(view, round, count, Infinity)), legend(view)];
}

/** The token that is looked at, and the piece that Tab leads to. @param {View} view @param {Spot} spot @param {Place} stop */
function mark({ ui }, spot, stop) {
  for (const node of pieces(ui.whole)) {
    node.classList.toggle("chosen", !isText(pieceOf(node).piece) && node.dataset.index === String(spot.index));
    node.tabIndex = -1;
  }
  const first = nodeOf(ui.whole, stop);
  if (first) first.tabIndex = 0;
}

/** Scrolls a box, and nothing around it, until it shows what lies in it. @param {Element} box @param {Element} node */
function bringIn(box, node) {
  const [area, at] = [box.getBoundingClientRect(), node.getBoundingClientRect()];
  box.scrollLeft += Math.max(0, at.right - area.right) + Math.min(0, at.left - area.left);
  box.scrollTop += Math.max(0, at.bottom - area.bottom) + Math.min(0, at.top - area.top);
}

/** @typedef {{ piece: Piece, index: Index }} Place */

/** @param {HTMLElement} whole @returns {HTMLElement[]} */
const pieces = (whole) => [.../** @type {NodeListOf<HTMLElement>} */ (whole.querySelectorAll("[data-piece]"))].filter((node) => node.checkVisibility({ visibilityProperty: false }));

/** @param {any} node @returns {Place} */
const pieceOf = ({ dataset }) => ({ piece: dataset.piece, index: dataset.index === "next" ? "next" : Number(dataset.index) });

/** Of a token without that piece, another of its own. @param {HTMLElement} whole @param {Place} place @returns {HTMLElement | null} */
function nodeOf(whole, { piece, index }) {
  const own = `[data-index="${index}"]`;
  return whole.querySelector(`[data-piece="${piece}"]${own}`) ?? whole.querySelector(`[data-piece]${own}:not([data-piece="text"])`);
}

/** @param {View} view @param {Choosing} choosing @param {any} event */
function onPiece(view, choosing, event) {
  const node = event.target.closest("[data-piece]");
  if (node) zoomIn(view, choosing, pieceOf(node));
}

/** The token whose piece a node lies in. @param {View} view @param {any} node @returns {Spot | null} */
function spotIn(view, node) {
  const [shown, piece] = [spotShown(view), node.closest("[data-piece]")];
  return shown && piece && !isText(piece.dataset.piece) ? { round: shown.round, index: pieceOf(piece).index } : null;
}

/** Looks at a token of the round that is shown. @param {View} view @param {Choosing} choosing @param {Spot} spot */
function look(view, choosing, spot) {
  if (spot.index === spotShown(view)?.index) drawPicture(view);
  else choosing.choose(view, spot, { pin: view.pinned });
}

/** @param {View} view @param {Choosing} choosing @param {Place} place */
function zoomIn(view, choosing, { piece, index }) {
  const spot = spotShown(view);
  if (!spot) return;
  view.picture.piece = piece;
  if (isText(piece)) drawPicture(view);
  else look(view, choosing, { round: spot.round, index });
  fly(view.ui.frame, nodeOf(view.ui.whole, { piece, index }), view.ui.whole, view.ui.near, true);
  view.ui.near.focus({ preventScroll: true });
}

/** @param {View} view */
export function zoomOut(view) {
  const spot = spotShown(view);
  const { piece } = view.picture;
  if (piece === null || !isBegun(view, spot)) return;
  const place = { piece, index: isText(piece) ? /** @type {Index} */ ("next") : spot.index };
  view.picture.piece = null;
  drawPicture(view); // and the close-up stays as it is: it is seen on the way out
  const node = nodeOf(view.ui.whole, place);
  fly(view.ui.frame, node, view.ui.whole, view.ui.near, false);
  node?.focus({ preventScroll: true });
}

/** To the piece beside this one, near or from afar. @param {View} view @param {Choosing} choosing @param {string} key */
function turn(view, choosing, key) {
  const spot = spotShown(view);
  const { ui, picture } = view;
  if (!isBegun(view, spot)) return;
  if (picture.piece !== null) drawWhole(view); // to see where its pieces are
  const held = /** @type {HTMLElement | null} */ (view.shadow.activeElement);
  const here = picture.piece !== null ? nodeOf(ui.whole, { piece: picture.piece, index: isText(picture.piece) ? "next" : spot.index })
    : held?.closest(".overview [data-piece]") ?? nodeOf(ui.whole, { piece: "draft", index: spot.index });
  const there = here && beside(pieces(ui.whole), /** @type {HTMLElement} */ (here), key);
  if (!there) return;
  const place = pieceOf(there);
  if (picture.piece === null) {
    mark(view, spot, place);
    there.focus();
    return;
  }
  const old = ui.near.cloneNode(true);
  ui.frame.append(old);
  old.inert = true;
  picture.piece = place.piece;
  if (isText(place.piece)) drawPicture(view);
  else look(view, choosing, { round: spot.round, index: place.index });
  const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key] ?? [0, 0];
  slide(old, ui.near, right, down);
}

/** The nearest piece in a direction, as the eye sees them. @param {HTMLElement[]} all @param {HTMLElement} from @param {string} key */
function beside(all, from, key) {
  const middle = (/** @type {HTMLElement} */ node) => {
    const { left, top, width, height } = node.getBoundingClientRect();
    return { x: left + width / 2, y: top + height / 2 };
  };
  const sideways = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  const at = middle(from);
  const away = all.filter((node) => node !== from).map((node) => {
    const { x, y } = middle(node);
    const [ahead, aside] = sideways ? [sign * (x - at.x), Math.abs(y - at.y)] : [sign * (y - at.y), Math.abs(x - at.x)];
    return { node, ahead, distance: ahead + 3 * aside };
  });
  return away.filter(({ ahead }) => ahead > 4).sort((a, b) => a.distance - b.distance)[0]?.node;
}

/** @param {View} view @param {Choosing} choosing @param {KeyboardEvent} event */
function onPictureKey(view, choosing, event) {
  const node = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || node.matches("input, select")) return;
  const inside = view.ui.frame.contains(node);
  if (event.key === "Escape" && !view.presentation.open) {
    if (view.picture.piece !== null && !view.pinned) zoomOut(view);
    else choosing.letGo(view, true);
  } else if (inside && event.key.startsWith("Arrow")) turn(view, choosing, event.key);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

// How much larger than in the list a tree is drawn; how small a close-up may get before it scrolls.
const [LARGEST, SMALLEST, LEAST] = [2, 0.4, 0.75];
const FOR_FINGERS = 1.08; // a chip of a tree is 44 px high

/**
 * A tree, the sentence and, over the whole window, close-ups are not cut off: what has too little room is drawn smaller.
 * Upright, a tree scrolls sideways.
 *
 * @param {View} view
 */
function fitPicture({ ui, presentation }) {
  const grove = ui.whole.querySelector(".grove");
  const upright = ui.frame.clientWidth < 500; // as in picture.css
  if (grove) fit(grove, grove.firstElementChild, presentation.open ? LARGEST : FOR_FINGERS, upright ? FOR_FINGERS : SMALLEST);
  const caption = ui.whole.querySelector(".caption");
  if (caption) fit(caption, caption.firstElementChild, 1, SMALLEST);
  // Of a long draft; once all verdicts are out, with what is drawn from.
  for (const node of [...ui.whole.querySelectorAll(".table .next:has(.bars)"), ...ui.whole.querySelectorAll(".table .chosen")]) bringIn(node.parentElement, node);
  if (presentation.open) for (const box of ui.near.children) fit(ui.near, box, box.matches(".page") ? LARGEST : 1, LEAST);
  if (isText(ui.near.dataset.piece)) ui.near.scrollTop = ui.near.scrollHeight; // what is new stands at the end
}

const STEP = 0.05;

/** What a box holds is drawn as large as it fits, between two sizes. @param {HTMLElement} box @param {any} drawn @param {number} largest @param {number} smallest */
function fit(box, drawn, largest, smallest) {
  const isWhole = (/** @type {HTMLElement} */ node) => node.scrollHeight <= node.clientHeight + 1 && node.scrollWidth <= node.clientWidth + 1;
  let scale = largest;
  do {
    drawn.style.zoom = String(scale);
    scale -= STEP;
  } while (!(isWhole(box) && isWhole(drawn)) && scale >= smallest);
}
