// Joins the tour to its component, and tells it of the Gradio page around it.

import { isVisible } from "../tour/page.js";
import { hasTab, isIdle, openTab, watchButtons } from "./tabs.js";
import { join as joinView } from "./view.js";

/** @type {import("../tour/page.js").TourPage} */
const page = {
  idle: isIdle,
  refused: () => isVisible(document.querySelector(".sv-controls .validation-error")),
  measures: () => /** @type {HTMLInputElement} */ (document.querySelector("#measured input")).checked,
  hasTab,
  openTab,
  watch: watchButtons,
};

/** @param {import("./view.js").Component} component @param {Parameters<typeof joinView>[1]} given */
export function join(component, given) {
  const tour = /** @type {any} */ (component.element.querySelector(given.tag));
  customElements.whenDefined(given.tag).then(() => (tour.page = page));
  return joinView(component, given);
}
