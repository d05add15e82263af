// As large as there is room.

const STEP = 0.05;

/**
 * Nothing is cut off: what a box holds is drawn as large as it fits, between two sizes.
 *
 * @param {HTMLElement} box @param {any} drawn @param {number} largest @param {number} smallest
 */
export function fit(box, drawn, largest, smallest) {
  if (!drawn) return;
  const isWhole = (/** @type {HTMLElement} */ node) => node.scrollHeight <= node.clientHeight + 1 && node.scrollWidth <= node.clientWidth + 1;
  let scale = largest;
  do {
    drawn.style.zoom = String(scale);
    scale -= STEP;
  } while (!(isWhole(box) && isWhole(drawn)) && scale >= smallest);
}
