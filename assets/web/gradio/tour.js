// Joins the tour to its component, and tells it of the Gradio page around it.

import { hasTab, isIdle, openTab, watchButtons } from "./tabs.js";
import { join as joinView } from "./view.js";

/** @type {import("../tour/page.js").TourPage} */
const page = {
  idle: isIdle,
  measures: () => /** @type {HTMLInputElement} */ (document.querySelector("#measured input")).checked,
  hasTab,
  openTab,
  watch: watchButtons,
};

/** @param {import("./view.js").Component} component @param {Parameters<typeof joinView>[1]} given */
export function join(component, given) {
  const tour = /** @type {any} */ (component.element.querySelector("specviz-tour"));
  customElements.whenDefined("specviz-tour").then(() => (tour.page = page));
  return joinView(component, given);
}
