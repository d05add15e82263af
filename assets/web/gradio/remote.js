// Sets the page's controls and presses its buttons for the elements that ask for it, by a `specviz-press` event with
// { settings, press, measure, back, pair, details }: the settings by the names of the controls; the button to press once they stand, or
// null; whether the speedup is to be measured after a run (left out: as the visitor has it); and the tab to come back to
// when that run is over (left out: none), unless the visitor has gone elsewhere; and the name of the pair that it takes (left
// out: any); and what that button's work is to know beyond the controls. The server checks the settings and sets
// the controls; its answer is this component's value. What the controls said before is told by a `specviz-set` event with
// { before }, for whoever wants to bring that back; a request that the server refuses, by `specviz-refused`.

import { kept } from "../shared/kept.js";
import { pairInUse } from "./pair.js";
import { isIdle, isOpen, openTab, watchButtons } from "./tabs.js";

/** The button that starts a piece of work. @param {string} name */
const button = (name) => /** @type {HTMLElement | null} */ (document.querySelector(name === "generate" ? "#go" : `#start-${name}`));

/** @param {import("./view.js").Component} component */
export function join({ trigger }) {
  // A link that names a tab leads to it again once its run is over.
  /** @type {string | undefined} */
  let back = location.hash.slice(1);
  document.addEventListener("specviz-press", (event) => {
    const { back: wanted, ...asked } = event.detail;
    back = wanted;
    trigger("submit", { measure: null, pair: null, details: null, ...asked });
  });
  document.addEventListener("specviz-can-press", (event) => event.preventDefault());
  const settings = kept("settings");
  // After a reload the controls say what the last run was made with, once they suit the pair; a link has its own.
  const bringBack = () => trigger("submit", { settings, press: null, measure: null, pair: null, details: null });
  if (settings && location.search.length < 2) {
    if (pairInUse()) bringBack();
    else document.addEventListener("specviz-pair", bringBack, { once: true });
  }
  return (/** @type {string} */ value) => {
    const { press, before, refused } = JSON.parse(value);
    if (refused) document.dispatchEvent(new CustomEvent("specviz-refused", { detail: { sentence: refused } }));
    if (before) document.dispatchEvent(new CustomEvent("specviz-set", { detail: { before } }));
    if (!press) return;
    const then = back;
    // The next frame: the controls take their values together with this one.
    requestAnimationFrame(() => {
      // It is not there while something runs: then the visitor was faster.
      button(press)?.click();
      if (then) comeBack(press, then);
    });
  };
}

/** Ends what waits for a run to be over. */
let forget = () => {};

/**
 * When the run is over: from the tab that shows it to the tab that asked for it. A button that the visitor presses has
 * nothing to do with that: then the run that was asked for was refused, or is over.
 *
 * @param {string} from @param {string} to
 */
function comeBack(from, to) {
  forget();
  let begun = false;
  const unwatch = watchButtons(() => {
    begun ||= !isIdle();
    if (!begun || !isIdle()) return;
    forget();
    if (isOpen(from)) openTab(to);
  });
  const onClick = (/** @type {MouseEvent} */ event) => {
    const pressed = event.isTrusted && event.target instanceof Element && event.target.closest("#go, [id^='start-']");
    if (pressed) forget();
  };
  document.addEventListener("click", onClick, { capture: true });
  forget = () => {
    unwatch();
    document.removeEventListener("click", onClick, { capture: true });
    forget = () => {};
  };
}
