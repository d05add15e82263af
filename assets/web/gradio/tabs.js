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

/**
 * Calls back with the name of each tab that is opened, the one that is open when the page has its tabs being the first.
 * Watches the whole page: Gradio puts its tabs there late, and may make them anew.
 *
 * @param {(name: string) => void} onOpen
 */
export function watchTabs(onOpen) {
  /** @type {string | undefined} */
  let open;
  const selected = '[role="tablist"]:not(.visually-hidden) [data-tab-id][aria-selected="true"]';
  const look = () => {
    const name = /** @type {HTMLElement | null} */ (document.querySelector(selected))?.dataset.tabId;
    if (name && name !== open) onOpen((open = name));
  };
  look();
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributeFilter: ["aria-selected"] });
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
