// Names Gradio's sliders in the page's language: it puts English words before the label, where the label alone says it, as a
// field's kind is told anyway.

const ENGLISH = /^(?:number input|range slider) for /;

function nameSliders() {
  if (["", "en"].includes(document.documentElement.lang)) return; // or nobody has said yet
  for (const field of document.querySelectorAll('input[aria-label*=" for "]')) {
    const label = field.getAttribute("aria-label") ?? "";
    if (ENGLISH.test(label)) field.setAttribute("aria-label", label.replace(ENGLISH, ""));
  }
}

// Tabs are drawn when they are opened, and labels may change with the pair.
new MutationObserver(nameSliders).observe(document.documentElement, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-label", "lang"] });

export {};
