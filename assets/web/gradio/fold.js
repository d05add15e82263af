// Shows and hides a block of controls: the button in the component names the block.

/** @param {import("./view.js").Component} component */
export function join({ element }) {
  const button = /** @type {HTMLElement} */ (element.querySelector("button"));
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(open));
    document.getElementById(button.getAttribute("aria-controls") ?? "")?.classList.toggle("sv-open", open);
  });
  return () => {};
}
