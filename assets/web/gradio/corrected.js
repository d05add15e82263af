// Says at a slider's number field what became of a value that it does not take. Gradio puts the nearest one in its place
// when the field is left, and tells nobody.

import { speaker } from "../shared/words.js";

const NUMBER = '.block input[data-testid="number-input"]';

/**
 * @param {import("./view.js").Component} _component
 * @param {{ words: Record<string, import("../shared/words.js").Text> }} given
 */
export function join(_component, { words }) {
  const say = speaker(words);
  // While it is on its way to the field: what was typed is still there.
  document.addEventListener("blur", ({ target }) => {
    if (!(target instanceof HTMLInputElement) || !target.matches(NUMBER)) return;
    const asked = target.value;
    setTimeout(() => target.value !== asked && tell(target, sentence(say, target, asked)));
  }, true);
  // Voice control and the like press a button while the field keeps the focus: the server would get what was typed.
  document.addEventListener("click", ({ target }) => {
    const field = /** @type {HTMLElement | null} */ (document.activeElement);
    if (field !== target && field?.matches(NUMBER)) field.blur();
  }, true);
  document.addEventListener("input", ({ target }) => /** @type {Element} */ (target).closest(".block")?.querySelector(":scope > .sv-corrected")?.remove());
  return () => {};
}

/** @param {import("../shared/words.js").Say} say @param {HTMLInputElement} field @param {string} asked */
function sentence(say, { value }, asked) {
  if (asked === "") return say("controls.no_number", { value });
  return say(Number(value) < Number(asked) ? "controls.most" : "controls.least", { value, asked });
}

/** @param {HTMLInputElement} field @param {string} text */
function tell(field, text) {
  const said = document.createElement("p");
  said.className = "sv-corrected";
  said.role = "status";
  said.textContent = text;
  field.closest(".block")?.append(said);
}
