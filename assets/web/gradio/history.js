// Tabs make history: the browser's Back leads to the tab before, and a reload, or a link, to the tab that was open. All
// else in the address stays: Gradio's <base> takes a bare #name for another page, without language and settings.

import { hasTab, openTab, watchTabs } from "./tabs.js";

/** @param {import("./view.js").Component} _ @param {{ first: string }} given first: the tab of a page without a name */
export function join(_, { first }) {
  const named = () => location.hash.slice(1) || first;
  let arrived = false;
  watchTabs((name) => {
    if (arrived || !location.hash) {
      // Also those that a button opened, or a visitor before this was there. What Back has opened is named already.
      if (name !== named()) history.pushState(null, "", `${location.pathname}${location.search}#${name}`);
    } else if (hasTab(named())) openTab(named());
    arrived = true;
  });
  window.addEventListener("popstate", () => openTab(named()));
  document.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest("a[href^='#']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return; // these open it elsewhere
    event.preventDefault();
    location.hash = /** @type {HTMLAnchorElement} */ (link).hash;
  });
  return () => {};
}
