// What the tour needs to know of the page around it, and what it draws over that page.

import { scrollPage, scrolling } from "../shared/dom.js";
import { liveRun } from "../shared/live.js";
import { inView } from "./steps.js";

/**
 * The page around a tour; gradio/tour.js knows the Gradio page.
 *
 * @typedef {{
 *   idle(): boolean, measures(): boolean, hasTab(name: string): boolean, openTab(name: string): void,
 *   watch(onChange: () => void): () => void,
 * }} TourPage
 *   idle: whether a run may be started; measures: whether the visitor wants the speedup measured after each run;
 *   watch: calls back when any of that may have changed, and returns what ends it
 */

/** A page that shows a <specviz-run> and no more. @type {TourPage} */
export const BARE_PAGE = {
  idle: () => !["waiting", "running"].includes(liveRun()?.state ?? ""),
  measures: () => false,
  hasTab: () => false,
  openTab() {},
  watch: () => () => {},
};

/** @param {Element | null | undefined} node */
export const isVisible = (node) => Boolean(node && node.getClientRects().length > 0);

const RING = { outline: "3px solid var(--sv-focus)", outlineOffset: "3px", borderRadius: "6px" };
/** @type {any[]} */
let ringed = [];

/**
 * Rings these nodes and no others. They lie in other shadow roots, so the ring is a style of their own.
 *
 * @param {(Element | null | undefined)[]} nodes
 */
export function ring(nodes) {
  for (const node of ringed) Object.assign(node.style, { outline: "", outlineOffset: "", borderRadius: "" });
  ringed = nodes.filter(Boolean);
  for (const node of ringed) Object.assign(node.style, RING);
}

/**
 * Scrolls the page so far that a node stands between the sticky figures and what is docked to the bottom.
 *
 * @param {Element} panel the tour's
 * @param {Element} node
 */
export function bring(panel, node) {
  const sheet = inView("[part=picture][data-open]");
  const docked = (/** @type {any} */ one) => isVisible(one) && getComputedStyle(one).position === "fixed";
  const covers = [panel, sheet].filter(docked);
  const bottom = Math.min(...covers.map((one) => /** @type {Element} */ (one).getBoundingClientRect().top)) - 14;
  const figures = inView(".figures")?.getBoundingClientRect().height ?? 0;
  const top = node.closest(".figures") ? 8 : figures + 8;
  const box = node.getBoundingClientRect();
  const away = box.top < top || box.height > bottom - top ? box.top - top : Math.max(0, box.bottom - bottom);
  if (away) scrollPage(away, scrolling());
}
