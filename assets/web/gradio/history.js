// Tabs make history: the browser's Back leads to the tab before, and a reload, or a link, to the tab that was open.

import { hasTab, openTab, watchTabs } from "./tabs.js";

/** @param {import("./view.js").Component} _ @param {{ first: string }} given first: the tab of a page without a name */
export function join(_, { first }) {
  const named = () => location.hash.slice(1) || first;
  requestAnimationFrame(() => {
    if (hasTab(named())) openTab(named());
    // Also those that a button opened. What Back has opened is named already.
    watchTabs((name) => {
      if (name !== named()) history.pushState(null, "", `#${name}`);
    });
  });
  window.addEventListener("popstate", () => openTab(named()));
  return () => {};
}
