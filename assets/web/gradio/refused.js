// Says beside the buttons which value was refused, and brings the visitor to its control, which may be folded away or
// far off. Gradio shows the sentence above the control, and tells nobody.

/** @param {import("./view.js").Component} component */
export function join({ element }) {
  const said = /** @type {HTMLElement} */ (element.querySelector("p"));
  const main = /** @type {HTMLElement} */ (document.querySelector(".sv-main"));
  /** @type {Element | null} the refusal that is shown */
  let shown = null;
  new MutationObserver(() => {
    const refusal = main.querySelector(".validation-error:not(input, textarea, select)");
    if (refusal === shown) return;
    shown = refusal;
    said.textContent = refusal?.textContent?.trim() ?? "";
    if (refusal) goTo(refusal);
  }).observe(main, { childList: true, subtree: true });
  return () => {};
}

/** @param {Element} refusal */
function goTo(refusal) {
  const block = refusal.closest(".block");
  const control = /** @type {HTMLElement | null} */ (block?.querySelector("input, textarea, select") ?? null);
  // First into sight: focus alone brings only the control there, not the sentence above it.
  block?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}
