// Joins the tour to its component, and tells it of the Gradio page around it.

import { isVisible } from "../tour/page.js";
import { join as joinView } from "./view.js";

/** @param {string} name */
const tabButton = (name) => [...document.querySelectorAll(`button[data-tab-id="${name}"]`)].find(isVisible);

/** @type {import("../tour/page.js").TourPage} */
const page = {
  idle: () => isVisible(document.querySelector("#go:enabled")),
  refused: () => isVisible(document.querySelector(".sv-controls .validation-error")),
  measures: () => /** @type {HTMLInputElement} */ (document.querySelector("#measured input")).checked,
  hasTab: (name) => Boolean(tabButton(name)),
  openTab(name) {
    const button = /** @type {HTMLElement | undefined} */ (tabButton(name));
    if (button && button.getAttribute("aria-selected") !== "true") button.click();
  },
  // Gradio tells nobody when its buttons come and go.
  watch(onChange) {
    const watcher = new MutationObserver(onChange);
    const controls = /** @type {Element} */ (document.querySelector(".sv-controls"));
    watcher.observe(controls, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style", "disabled"] });
    return () => watcher.disconnect();
  },
};

/** @param {import("./view.js").Component} component @param {Parameters<typeof joinView>[1]} given */
export function join(component, given) {
  const tour = /** @type {any} */ (component.element.querySelector(given.tag));
  customElements.whenDefined(given.tag).then(() => (tour.page = page));
  return joinView(component, given);
}
