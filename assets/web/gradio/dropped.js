// A file that is dropped on a block goes the way of one that its upload button opens.

/** @param {import("./view.js").Component} _ @param {{ onto: string, upload: string }} given element ids */
export function join(_, { onto, upload }) {
  const block = /** @type {HTMLElement} */ (document.getElementById(onto));
  block.addEventListener("dragover", (event) => event.preventDefault());
  block.addEventListener("drop", (event) => {
    const files = event.dataTransfer?.files;
    const input = fileInput(document.getElementById(upload));
    if (!files?.length || !input) return;
    event.preventDefault();
    const first = new DataTransfer();
    first.items.add(files[0]);
    input.files = first.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
  return () => {};
}

/** Gradio's own input stands within its button or beside it. @param {HTMLElement | null} button @returns {HTMLInputElement | null} */
function fileInput(button) {
  return button && (button.querySelector("input[type=file]") ?? button.parentElement?.querySelector("input[type=file]") ?? null);
}
