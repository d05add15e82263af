// The pictures of a token as far as the reader's place knows them: its coin, the distributions, and the draw.

import { coinLine } from "./coin.js";
import { distribution } from "./distribution.js";
import { drawLine, residual } from "./draw_line.js";
import { isDrawn, sealedAt } from "../place.js";
import { flippedAt, isRefusal } from "../record/records.js";
import { knownAt } from "../record/stages.js";
import { powerOf, roundShown, supposedOf } from "./suppose.js";

/** @typedef {import("../view.js").View} View */
/** @typedef {import("../types.js").Spot} Spot */
/** @typedef {{ coin: Node[], bars: Node[], draw: Node[] }} Evidence */

/**
 * Overview and close-up show the same; what has no picture yet has none.
 *
 * @param {View} view @param {Spot} spot @param {number} [most] tokens that the bars show @returns {Evidence}
 */
export function evidence(view, spot, most) {
  const { run } = view;
  const round = roundShown(view, spot.round);
  const { index } = spot;
  if (!isSeen(view, spot)) return { coin: [], bars: [], draw: [] };
  const drawn = isDrawn(view, spot);
  const out = index === "next" || !sealedAt(view, spot);
  const flipped = out ? flippedAt(round, index) : null;
  const refused = out && isRefusal(run, round, index);
  const known = drawn && !round.next.unknown;
  const draw = refused && !round.next.unknown ? residual(run, round, index, drawn) : index === "next" && known ? drawLine(run, round) : [];
  return { coin: flipped ? [coinLine(run, flipped)] : [], bars: distribution(run, round, index, refused, known, most, powerOf(run, supposedOf(view, spot.round))), draw };
}

/** Whether the target has looked there; where it draws itself, after the last verdict. @param {View} view @param {Spot} spot */
function isSeen(view, spot) {
  const pending = sealedAt(view, spot);
  const { at } = view.playback;
  if (!pending || !at) return true;
  return pending === "passed" || (spot.index === "next" && knownAt(view.run, at.round, at.stage).judged === null);
}
