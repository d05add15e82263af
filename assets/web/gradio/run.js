// Joins the live view to its component, and brings back what it showed when the page is loaded again, as Gradio does with a
// page that has lost its server. The server completes a run that it knows. One that was started since knows none: it says so,
// and the browser shows what it has kept itself.

import { keep, kept } from "../shared/kept.js";
import { join as joinView } from "./view.js";

/** @param {import("./view.js").Component} component @param {Parameters<typeof joinView>[1]} given */
export function join(component, given) {
  const view = /** @type {any} */ (component.element.querySelector("specviz-run"));
  const take = joinView(component, given);
  // A link asks for a run of its own.
  const run = location.search.length < 2 ? kept("run") : null;
  const here = `${location.pathname} ${import.meta.url}`; // the page's language, and the version of its scripts
  const { page, messages } = kept("left") ?? { page: "", messages: [] };
  /** @type {import("../shared/element.js").Message[]} */
  const left = page === here ? messages : [];
  addEventListener("pagehide", () => {
    keep("left", null); // what is too large to be kept must not leave the one before
    keep("left", { page: here, messages: view.left });
  });
  if (run) component.trigger("submit", { run, held: left.length > 0 });
  return (/** @type {string} */ value) => {
    take(value);
    if (!left.length) return;
    const { kind, parts } = JSON.parse(value);
    const unknown = kind === "lost";
    if (!unknown && run && parts?.[0].run !== run) return; // not the answer yet
    const begun = parts?.some((/** @type {any} */ part) => part.kind === "rounds" && part.rounds.length);
    for (const message of left.splice(0)) {
      // What the page had not heard of has begun all the same.
      if (message.kind === "left" && begun && message.run === run) continue;
      if (unknown || message.kind !== "trace") take(JSON.stringify(message));
    }
  };
}
