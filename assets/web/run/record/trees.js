// A draft as a tree: who continues whom, and where each token stands when it is drawn.

import { acceptedIndexes } from "./records.js";

/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */
/** @typedef {import("../types.js").Stand} Stand */

/** Whether a draft branches: in a chain each token continues the one before it. @param {Round} round */
export const isTree = (round) => round.drafted.some((token, i) => token.parent !== i - 1);

/**
 * What a node continues: a draft token's index, or −1 for the committed text.
 *
 * @param {Round} round @param {Index} index
 */
export function parentOf(round, index) {
  return index === "next" ? (acceptedIndexes(round).at(-1) ?? -1) : round.drafted[index].parent;
}

/**
 * From each node to what continues it, in the order tried; the target's own token comes after the draft's.
 *
 * @param {Round} round @returns {Map<Index, Index[]>}
 */
export function families(round) {
  const found = /** @type {Map<Index, Index[]>} */ (new Map([[-1, []]]));
  round.drafted.forEach((token, i) => {
    found.get(token.parent)?.push(i);
    found.set(i, []);
  });
  found.get(parentOf(round, "next"))?.push("next");
  return found.set("next", []);
}

/**
 * A draft token among its siblings: { kin, order }, order from 1. A chain has no siblings: kin is the token alone.
 *
 * @param {Round} round @param {Index} index
 */
export function siblings(round, index) {
  const all = families(round).get(parentOf(round, index)) ?? [];
  const kin = all.filter((node) => node !== "next");
  return { kin, order: index === "next" ? 0 : kin.indexOf(index) + 1 };
}

/** @param {Round} round @param {Index} index @returns {number} */
export function depthOf(round, index) {
  const parent = parentOf(round, index);
  return parent < 0 ? 1 : 1 + depthOf(round, parent);
}

/**
 * A { column, row } for every node, one column a depth, no column higher than the widest depth. A node stands beside
 * its parent unless those above it need the place or those below would run out of it; as every column keeps the order
 * of the one before, no two branches cross. The target's own token comes after all of them, as in a chain: a place left
 * free among them would tell where the path ends, before anything is judged.
 *
 * @param {Round} round
 */
export function layOut(round) {
  const kin = families(round);
  const columns = [];
  const after = (/** @type {Index} */ node) => (kin.get(node) ?? []).filter((one) => one !== "next");
  for (let column = after(-1); column.length; column = column.flatMap(after)) columns.push(column);
  const height = Math.max(...columns.map((column) => column.length));
  const spots = /** @type {Map<Index, Stand>} */ (new Map([[-1, { column: -1, row: 0 }]]));
  columns.forEach((nodes, column) => {
    let free = 0;
    nodes.forEach((node, i) => {
      const beside = spots.get(parentOf(round, node))?.row ?? 0;
      const row = Math.max(free, Math.min(beside, height - (nodes.length - i)));
      spots.set(node, { column, row });
      free = row + 1;
    });
  });
  spots.set("next", { column: columns.length, row: spots.get(parentOf(round, "next"))?.row ?? 0 });
  return { spots, columns: [...columns, ["next"]], height };
}

/**
 * What a round's line holds: all of a chain, of a tree the kept path; then the target's own token.
 *
 * @param {Round} round @returns {Index[]}
 */
export const pathOf = (round) => [...(isTree(round) ? acceptedIndexes(round) : round.drafted.keys()), "next"];

/** The draft tokens that were refused where the target's own token stands. @param {Round} round */
export const refusedHere = (round) => round.drafted.filter((token) => token.outcome === "rejected" && token.parent === parentOf(round, "next"));
