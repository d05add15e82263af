// Draws a round's draft as a tree of chips.

import { make, svg } from "../../shared/dom.js";
import { draftChip, nextChip } from "./chips.js";
import { sourceName } from "../record/names.js";
import { nextKind } from "../record/records.js";
import { layOut, parentOf } from "../record/trees.js";

/** @typedef {import("../types.js").Stand} Stand */
/** @typedef {import("../data.js").Run} Run */
/** @typedef {import("../types.js").Index} Index */
/** @typedef {import("../types.js").Round} Round */

// Sizes in a tree, px: lines are drawn from them, so nothing has to be measured. A chip is wider where its figures are
// longer: none is ever cut.
const TREE = { root: 18, chip: 92, line: 18, height: 41, space: 6, heads: 18, letter: 6, sides: 16 };

/** @param {Run} run @param {number} index @param {Round} round */
export function treeBox(run, index, round) {
  const { spots, columns, height } = layOut(round);
  const heads = columns.map((nodes) => columnHead(run, round, nodes));
  const top = heads.some(Boolean) ? TREE.heads : 0;
  const chips = new Map(columns.flat().map((node) => [node, node === "next" ? nextChip(run, index, round) : draftChip(run, index, node, round)]));
  const width = chipWidth([...chips.values()]);
  const x = (column) => TREE.root + column * (width + TREE.line);
  const y = (row) => top + row * (TREE.height + TREE.space);
  const plane = make("div", { class: "plane" });
  plane.style.cssText = `width: ${x(columns.length) - TREE.line}px; height: ${y(height)}px;`
    + ` --chip-width: ${width}px; --chip-height: ${TREE.height}px;`;
  plane.append(branches(round, spots, x, y, width));
  heads.forEach((text, column) => {
    if (!text) return;
    const head = make("span", { class: "source", text });
    head.style.left = `${x(column)}px`;
    plane.append(head);
  });
  for (const [node, button] of chips) {
    const spot = /** @type {Stand} */ (spots.get(node));
    button.style.left = `${x(spot.column)}px`;
    button.style.top = `${y(spot.row)}px`;
    plane.append(button);
  }
  return make("div", { class: "tree", part: "tree", role: "group", "aria-label": run.say("rounds.tree", { round: index + 1 }) }, plane);
}

/** As wide as the longest figures need it. @param {HTMLElement[]} chips */
function chipWidth(chips) {
  const letters = chips.map((chip) => chip.querySelector(".m")?.textContent?.length ?? 0);
  return Math.max(TREE.chip, TREE.letter * Math.max(...letters) + TREE.sides);
}

/**
 * What proposed a whole column, where one layer or head did.
 *
 * @param {Run} run @param {Round} round @param {Index[]} nodes
 */
function columnHead(run, round, nodes) {
  const sources = new Set(nodes.filter((node) => node !== "next").map((node) => round.drafted[node].source));
  const [source] = sources;
  return sources.size === 1 && source != null ? sourceName(run, source) : undefined;
}

/**
 * The lines from each node to its parent; the kept path is drawn last, over the others.
 *
 * @param {Round} round @param {Map<Index, Stand>} spots @param {(column: number) => number} x
 * @param {(row: number) => number} y @param {number} width of a chip
 */
function branches(round, spots, x, y, width) {
  const lines = svg("svg", { class: "branches", "aria-hidden": "true" });
  const middle = (row) => y(row) + TREE.height / 2;
  lines.append(svg("circle", { cx: 4, cy: middle(0), r: 3.5 }));
  const kind = (node) => (node === "next" ? nextKind(round) : round.drafted[node].outcome);
  const rank = { discarded: 0, rejected: 1 };
  const nodes = [...spots.keys()].filter((node) => node !== -1).sort((a, b) => (rank[kind(a)] ?? 2) - (rank[kind(b)] ?? 2));
  for (const node of nodes) {
    const from = /** @type {Stand} */ (spots.get(parentOf(round, node)));
    const to = /** @type {Stand} */ (spots.get(node));
    const start = from.column < 0 ? 4 : x(from.column) + width;
    const [aside, end] = [x(from.column + 1), x(to.column)];
    // Past the columns between, in the space below the row.
    const below = middle(from.row) + (TREE.height + TREE.space) / 2;
    const d = aside === end ? bend(start, middle(from.row), end, middle(to.row))
      : `${bend(start, middle(from.row), aside, below)}H${end - TREE.line}${bend(end - TREE.line, below, end, middle(to.row))}`;
    lines.append(svg("path", { class: kind(node), "data-index": node, d }));
  }
  return lines;
}

/** A line from one point to another that leaves and arrives level. @param {...number} points */
function bend(...[x1, y1, x2, y2]) {
  const between = (x1 + x2) / 2;
  return `M${x1} ${y1}C${between} ${y1} ${between} ${y2} ${x2} ${y2}`;
}

/**
 * A deep tree scrolls in its own box: brings a chip of it into that box, and moves nothing else.
 *
 * @param {HTMLElement} button
 */
export function showInTree(button) {
  const box = button.closest(".tree");
  if (!box) return;
  const at = button.offsetLeft;
  if (at < box.scrollLeft || at + button.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = at - TREE.root - TREE.line;
}
