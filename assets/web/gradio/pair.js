// Tells the page in the browser which pair is in use: the drafters that it lacks are listed, each with its reason; the
// elements hear its name, and mark what comes from another pair. Submits once the controls suit it, unless they are as the
// page has opened them.

/**
 * @typedef {{ label: string, why: string }} Off a drafter, and what is missing
 * @typedef {{ pair: string, name: Record<string, unknown>, off: Off[] }} Facts pair: its name; name: how it was loaded
 */

/** @type {Facts | null} the last that was told */
let told = null;

/** Whether the visitor has set anything. */
let touched = false;
document.addEventListener("input", () => { touched = true; }, { capture: true, once: true });

/** The pair in use; null before there is one. */
export const pairInUse = () => told;

/** @param {import("./view.js").Component} component */
export function join({ element, trigger }) {
  const box = /** @type {HTMLDetailsElement} */ (element.querySelector("details"));
  return (/** @type {string} */ value) => {
    const facts = /** @type {Facts} */ (JSON.parse(value)), another = told !== null;
    told = facts;
    list(box, facts.off);
    // A link opens with the page's own pair, whatever is loaded beside it.
    for (const tag of facts.name.target === null ? ["specviz-run", "specviz-share"] : ["specviz-run"]) {
      const view = /** @type {any} */ (document.querySelector(tag));
      customElements.whenDefined(tag).then(() => view?.receive({ kind: "pair", pair: facts.pair }));
    }
    document.dispatchEvent(new CustomEvent("specviz-pair", { detail: facts }));
    // The next frame: the controls take their values together with this one.
    if (another || touched) requestAnimationFrame(() => trigger("submit"));
  };
}

/** @param {HTMLDetailsElement} box @param {Off[]} off */
function list(box, off) {
  box.hidden = !off.length;
  /** @type {HTMLElement} */ (box.querySelector("b")).textContent = String(off.length);
  /** @type {HTMLElement} */ (box.querySelector("ul")).replaceChildren(...off.map(({ label, why }) => {
    const [line, name] = [document.createElement("li"), document.createElement("b")];
    name.textContent = label;
    line.append(name, `: ${why}`);
    return line;
  }));
}
