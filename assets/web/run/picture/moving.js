// Moves a coin in the picture of a whole round, where it lies: by mouse or finger, or by Shift and an arrow.

import { coinOf, setCoin } from "./supposing.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */
/** @typedef {{ spot: Spot, pointer: number, x: number, line: DOMRect, moving: boolean }} Held */

const SLIP = 4; // px that a finger may move when it only taps
const STEP = 0.01;

/**
 * @param {View} view @param {(node: any) => Spot | null} spotAt the token of the piece that a node lies in
 * @param {(spot: Spot) => void} look chooses it, and draws what is supposed
 */
export function letCoinsMove(view, spotAt, look) {
  const { whole } = view.ui;
  let held = /** @type {Held | null} */ (null);
  const moved = () => Boolean(held?.moving);
  const move = (/** @type {PointerEvent} */ { clientX }) => {
    if (!held || (!held.moving && Math.abs(clientX - held.x) < SLIP)) return;
    if (!held.moving) whole.setPointerCapture(held.pointer); // the line itself is drawn anew
    held.moving = true;
    setCoin(view, held.spot, (clientX - held.line.left) / held.line.width);
    look(held.spot);
  };
  whole.addEventListener("pointerdown", (/** @type {any} */ { target, pointerId, clientX, button }) => {
    const [line, spot] = [target.closest(".flipped .track"), spotAt(target)];
    held = button === 0 && line && spot && coinOf(view, spot) !== null ? { spot, pointer: pointerId, x: clientX, line: line.getBoundingClientRect(), moving: false } : null;
  });
  whole.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) whole.addEventListener(name, () => setTimeout(() => (held = null)));
  whole.addEventListener("click", (/** @type {Event} */ event) => moved() && event.stopImmediatePropagation());
  whole.addEventListener("keydown", (/** @type {any} */ event) => {
    const way = { ArrowLeft: -STEP, ArrowRight: STEP }[/** @type {string} */ (event.key)];
    const spot = event.shiftKey && way ? spotAt(event.target) : null;
    const coin = spot && coinOf(view, spot);
    if (typeof coin !== "number" || !spot) return;
    setCoin(view, spot, coin + Number(way));
    look(spot);
    event.preventDefault();
    event.stopPropagation();
  });
}
