// Brings the visitor to a control whose value was refused, which may be folded away or far off, and tells the page of it.
// Gradio shows the sentence above the control, and tells nobody; it takes it down with the next event that reads the control.

export function join() {
  const main = /** @type {HTMLElement} */ (document.querySelector(".sv-main"));
  /** @type {Element | null} the refusal that is shown */
  let shown = null;
  new MutationObserver(() => {
    const refusal = main.querySelector(".validation-error:not(input, textarea, select)");
    if (refusal === shown) return;
    shown = refusal;
    if (!refusal) return;
    const sentence = (refusal.textContent ?? "").trim();
    document.dispatchEvent(new CustomEvent("specviz-refused", { detail: { sentence } }));
    goTo(refusal);
  }).observe(main, { childList: true, subtree: true });
  return () => {};
}

/** @param {Element} refusal */
function goTo(refusal) {
  for (let node = refusal.parentElement; node; node = node.parentElement) unfold(node.id);
  const block = refusal.closest(".block");
  const control = /** @type {HTMLElement | null} */ (block?.querySelector("input, textarea, select") ?? null);
  // Whoever does not see it hears it with the control.
  refusal.id = "refusal";
  control?.setAttribute("aria-describedby", refusal.id);
  // First into sight: focus alone brings only the control there, not the sentence above it.
  block?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}

/** @param {string} id of a block that a fold may hide */
function unfold(id) {
  if (id) /** @type {HTMLElement | null} */ (document.querySelector(`[aria-controls~="${CSS.escape(id)}"][aria-expanded="false"]`))?.click();
}
