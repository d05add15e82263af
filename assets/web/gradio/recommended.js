// Says which sampling the model in use recommends, and offers it as long as the controls say something else.

/** @typedef {{ text: string, settings: Record<string, number> | null }} Offer the settings by the names of the controls */

/**
 * @param {import("./view.js").Component} component
 * @param {{ set: number[] }} given by the controls, in the order of the offered settings
 */
export function join({ element }, { set }) {
  const line = /** @type {HTMLElement} */ (element.querySelector("p"));
  const text = /** @type {HTMLElement} */ (line.querySelector("span"));
  const use = /** @type {HTMLElement} */ (line.querySelector("button"));
  /** @type {Offer["settings"]} */
  let offered = null;
  const look = () => {
    line.hidden = !offered;
    // The button's place stays: nothing below moves while a slider passes the recommended value.
    line.classList.toggle("sv-taken", !!offered && Object.values(offered).every((value, at) => value === set[at]));
  };
  document.addEventListener("specviz-sampling", (event) => {
    set = event.detail;
    look();
  });
  use.addEventListener("click", () => {
    document.dispatchEvent(new CustomEvent("specviz-press", { detail: { settings: offered, press: null } }));
    // The button goes; whoever came by keyboard goes on from the first of what it set.
    /** @type {HTMLElement | null} */ (document.querySelector("#temperature input[type=range]"))?.focus({ preventScroll: true });
  });
  return (/** @type {string} */ value) => {
    const offer = /** @type {Offer} */ (JSON.parse(value));
    text.textContent = offer.text;
    offered = offer.settings;
    look();
  };
}
