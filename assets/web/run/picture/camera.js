// One camera for the picture's two layers: the whole round, and the close-up that stands where one of its pieces is. At rest
// neither is transformed, so text stays sharp, scrolls and can be selected; on the way both follow the same path.

import { wantsStillness } from "../../shared/dom.js";

const TRAVEL = 480; // ms

/**
 * Flies into a piece, or out of it. Where the reader wants no motion, the layers are where they belong already.
 *
 * @param {HTMLElement} frame @param {Element | null} piece @param {HTMLElement} whole @param {HTMLElement} near
 * @param {boolean} inward
 */
export function fly(frame, piece, whole, near, inward) {
  const [all, part] = [frame, piece].map((node) => node?.getBoundingClientRect());
  if (!all?.width || !part?.width) return;
  const scale = Math.min(all.width / part.width, all.height / part.height);
  const x = part.left - all.left + part.width / 2;
  const y = part.top - all.top + part.height / 2;
  // Both are linear in time, and the close-up is always where the camera sees the piece.
  const close = `translate(${all.width / 2 - x * scale}px, ${all.height / 2 - y * scale}px) scale(${scale})`;
  const far = `translate(${x - all.width / (2 * scale)}px, ${y - all.height / (2 * scale)}px) scale(${1 / scale})`;
  const home = "translate(0, 0) scale(1)";
  travel(whole, [{ transform: home, opacity: 1 }, { transform: close, opacity: 0 }], inward);
  travel(near, [{ transform: far, opacity: 0 }, { transform: home, opacity: 1 }], inward);
}

/**
 * Slides from one close-up to the one beside it: `old` goes out, `near` comes in.
 *
 * @param {HTMLElement} old @param {HTMLElement} near @param {number} right @param {number} down −1, 0 or 1
 */
export function slide(old, near, right, down) {
  const at = (/** @type {number} */ sign) => ({ transform: `translate(${100 * sign * right}%, ${100 * sign * down}%)` });
  travel(near, [at(1), at(0)], true);
  const out = travel(old, [at(0), at(-1)], true);
  if (out) out.onfinish = () => old.remove();
  else old.remove();
}

/** @param {HTMLElement} layer @param {Keyframe[]} frames @param {boolean} forward */
function travel(layer, frames, forward) {
  for (const animation of layer.getAnimations()) animation.cancel();
  if (wantsStillness()) return null;
  const seen = frames.map((frame) => ({ ...frame, transformOrigin: "0 0", visibility: "visible" }));
  return layer.animate(seen, { duration: TRAVEL, easing: "cubic-bezier(.3, 0, .2, 1)", direction: forward ? "normal" : "reverse" });
}
