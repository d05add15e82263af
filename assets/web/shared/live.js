// The page's live view of a run, for the elements that follow it. They listen to its events on the document; what it
// told before they were there, it still holds.

/** The page's <specviz-run>; null where there is none, or none yet. */
export function liveRun() {
  const view = /** @type {import("../run/element.js").SpecvizRun | null} */ (document.querySelector("specviz-run"));
  return view?.built ? view : null;
}
