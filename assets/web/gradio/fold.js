// Shows and hides blocks of controls: the button in the component names them.

import { scrolling } from "../shared/dom.js";
import { isIdle, watchButtons } from "./tabs.js";

/** @param {import("./view.js").Component} component @param {{ byRun: boolean }} given byRun: a run that begins hides them */
export function join({ element }, { byRun }) {
  const button = /** @type {HTMLElement} */ (element.querySelector("button"));
  const isOpen = () => button.getAttribute("aria-expanded") === "true";
  const blocks = (button.getAttribute("aria-controls") ?? "").split(" ");
  const set = (/** @type {boolean} */ open) => {
    button.setAttribute("aria-expanded", String(open));
    for (const id of blocks) document.getElementById(id)?.classList.toggle("sv-open", open);
  };
  button.addEventListener("click", () => {
    set(!isOpen());
    // In a low window what has unfolded would begin at its lower edge.
    if (isOpen() && !byRun) document.getElementById(blocks[0])?.scrollIntoView({ block: "nearest", behavior: scrolling() });
  });
  let idle = true;
  if (byRun) watchButtons(() => {
    const begun = idle && !isIdle();
    idle = isIdle();
    if (begun) set(false);
  });
  return () => {};
}
