// What Gradio's page tells of its tabs and of its runs, to whoever asks.

import { isVisible } from "../tour/page.js";

/** @param {string} name */
const tabButton = (name) => [...document.querySelectorAll(`button[data-tab-id="${name}"]`)].find(isVisible);

/** @param {string} name */
export const hasTab = (name) => Boolean(tabButton(name));

/** @param {string} name */
export const isOpen = (name) => tabButton(name)?.getAttribute("aria-selected") === "true";

/** @param {string} name */
export function openTab(name) {
  if (!isOpen(name)) /** @type {HTMLElement | undefined} */ (tabButton(name))?.click();
}

/** Whether a run may be started. */
export const isIdle = () => isVisible(document.querySelector("#go:enabled"));

/** Calls back whenever the buttons may have changed, of which Gradio tells nobody. @param {() => void} onChange */
export function watchButtons(onChange) {
  const watcher = new MutationObserver(onChange);
  const controls = /** @type {Element} */ (document.querySelector(".sv-controls"));
  watcher.observe(controls, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style", "disabled"] });
  return () => watcher.disconnect();
}
