// Sets the page's controls and presses its buttons for the elements that ask for it, by a `specviz-press` event with
// { settings, press, measure }: the settings by the names of the controls; the button to press once they stand, or null;
// and whether the speedup is to be measured after a run (left out: as the visitor has it). The server checks the settings
// and sets the controls; its answer is this component's value.

/** @type {Record<string, string>} */
const BUTTONS = { generate: "#go", race: "#start-race", compare: "#start-compare", lossless: "#start-lossless" };

/** @param {import("./view.js").Component} component */
export function join({ trigger }) {
  document.addEventListener("specviz-press", (event) => {
    trigger("submit", { measure: null, .../** @type {CustomEvent} */ (event).detail });
  });
  return (/** @type {string} */ value) => {
    const { press } = JSON.parse(value);
    // The next frame: the controls take their values together with this one.
    if (press) requestAnimationFrame(() => /** @type {HTMLElement} */ (document.querySelector(BUTTONS[press])).click());
  };
}
