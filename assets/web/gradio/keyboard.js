// What Gradio's controls lack for whoever uses the keyboard: where the focus goes, and what keys do.

import { isVisible } from "../tour/page.js";

/** @type {{ button: Element, row: Element } | null} the button that was pressed last, and where it stood */
let pressed = null;

/** Keys that Gradio's fields with lists take for one that opens the list, after the focus may have gone on. */
const ELSEWHERE = ["Tab", "Shift", "Control", "Alt", "Meta"];

/** @param {KeyboardEvent} event */
function onKey(event) {
  const { key, target } = event;
  // A key that is held presses once: the next button may stand in the same place.
  if (event.repeat && (key === "Enter" || key === " ") && target instanceof HTMLButtonElement) return event.preventDefault();
  if (key.startsWith("Arrow") || key === "Tab") group(event); // once more: Gradio names them anew
  if (!(target instanceof HTMLInputElement) || target.role !== "combobox") return;
  if (ELSEWHERE.includes(key)) leave(event, target);
  if (key === "Enter") stay(target);
  if (key === "ArrowDown" || key === "ArrowUp") event.preventDefault(); // which would scroll the page
}

/**
 * Leaves a field with a list. Browsers would go to a list that scrolls first, and nowhere once it is gone; and Gradio would open
 * the list again, for good.
 *
 * @param {KeyboardEvent} event @param {HTMLInputElement} field
 */
function leave(event, field) {
  const list = document.getElementById(field.getAttribute("aria-controls") ?? "");
  if (list) list.tabIndex = -1;
  event.stopPropagation();
}

/**
 * Stays in a field whose list was chosen from: Gradio gives the focus away, to nowhere. It does not hear of the return, or it
 * would open the list again.
 *
 * @param {HTMLInputElement} field
 */
function stay(field) {
  pressed = null; // no button is what the focus belongs to now
  afterFrames(() => {
    if (document.activeElement !== document.body || !isVisible(field)) return;
    document.addEventListener("focus", (event) => event.stopImmediatePropagation(), { capture: true, once: true });
    field.focus({ preventScroll: true });
  });
}

/** Once what has happened is drawn. @param {() => void} then */
const afterFrames = (then) => requestAnimationFrame(() => requestAnimationFrame(then));

/** Goes to the button that has taken the place of the one that was pressed: “Stop” where “Generate” was, and back. */
function follow() {
  if (!pressed || document.activeElement !== document.body) return;
  const { button, row } = pressed;
  const next = [...row.querySelectorAll("button")].find((one) => one !== button && !one.disabled && isVisible(one));
  if (!next) return;
  pressed = { button: next, row };
  next.focus({ preventScroll: true });
}

/** Makes the choices of a question one group, of which arrows choose: Gradio gives each a name of its own. @param {Event} event */
function group({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "radio") return;
  const all = target.closest(".block")?.querySelectorAll('input[type="radio"]') ?? [];
  for (const one of all) /** @type {HTMLInputElement} */ (one).name = /** @type {HTMLInputElement} */ (all[0]).name;
}

document.addEventListener("keydown", onKey, true);
document.addEventListener("focusin", group);
document.addEventListener("click", ({ target }) => {
  const button = target instanceof Element ? target.closest("button") : null;
  pressed = button?.parentElement && button === document.activeElement ? { button, row: button.parentElement } : null;
}, true);
// The focus is lost only once a page without the button is drawn.
new MutationObserver(() => pressed && afterFrames(follow)).observe(document.documentElement, {
  subtree: true, childList: true, attributes: true, attributeFilter: ["class", "style", "disabled"],
});
