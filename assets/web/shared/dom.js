// Makes and changes nodes. Text is always data: it is set, never parsed as HTML.

/**
 * An element: make("b", { class: "x", text: "…", on: { click } }, child, …). An option that is null, undefined or
 * false is left out; any other but `text` and `on` is an attribute.
 *
 * @param {string} tag
 * @param {Record<string, any>} [options]
 * @param {...(Node | string)} children
 * @returns {any} the element, of whatever class its tag has
 */
export function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, handler] of Object.entries(value)) node.addEventListener(type, handler);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/**
 * The same for SVG.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/**
 * Sets a node's text where it differs: writing the same text again would still cost a layout, and be read aloud.
 *
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Whether somebody is there to set controls and start runs: a page that only shows runs has nobody. */
export const somebodyPresses = () => !document.dispatchEvent(new CustomEvent("specviz-can-press", { cancelable: true }));

/** Whether the reader asked the system for less motion. */
export const wantsStillness = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

/** How to scroll for this reader. @returns {ScrollBehavior} */
export const scrolling = () => (wantsStillness() ? "auto" : "smooth");

/**
 * Scrolls the page: the window, or the body where that is what scrolls (gradio/framed.js). The other one stays where it is.
 *
 * @param {number} top by how many pixels @param {ScrollBehavior} [behavior]
 */
export function scrollPage(top, behavior) {
  for (const one of [window, document.body]) one.scrollBy({ top, behavior });
}

/**
 * Shows an element in which something has begun, if it begins out of sight: a button may stand far from what it starts.
 *
 * @param {Element} node
 */
export function bringIntoSight(node) {
  const place = node.getBoundingClientRect().top / window.innerHeight;
  if (place < -0.25 || place > 0.75) node.scrollIntoView({ block: place < 0 ? "start" : "nearest", behavior: scrolling() });
}
