// Joins a gr.HTML component to the element in it: the component's values are the element's messages, as JSON; an event
// of the element submits the component, and rounds that were lost are asked of the server. What was measured of a pair
// goes when the page uses another one.

import { pairInUse } from "./pair.js";

/**
 * What a component gives (load.js).
 *
 * @typedef {{ element: HTMLElement, trigger: (event: string, data?: any) => void, server: any }} Component
 */

/**
 * @param {Component} component
 * @param {{ module: string, tag: string, words: Record<string, import("../shared/words.js").Text>, submits: string | null,
 *   measures: boolean }} given the element's module, beside this folder, and its tag; the texts it says; the event on which
 *   to submit; whether it shows what was measured of the pair in use, and nothing else
 * @returns {(value: string) => void} takes a value
 */
export function join({ element, trigger, server }, { module, tag, words, submits, measures }) {
  let view = /** @type {import("../shared/element.js").SpecvizElement} */ (element.querySelector(tag));
  if (submits) view.addEventListener(submits, (event) => trigger("submit", /** @type {CustomEvent} */ (event).detail));
  view.addEventListener("specviz-ask-missing", (event) => answer(server, event.detail));
  view.addEventListener("specviz-ask-served", (event) => read(server, event.detail));
  const there = import(new URL(`../${module}`, import.meta.url).href).then(() => (view.words = words));
  if (measures) whenAnotherPairIsUsed(() => {
    const fresh = /** @type {typeof view} */ (document.createElement(tag));
    view.replaceWith(fresh);
    view = fresh;
    there.then(() => (fresh.words = words));
  });
  return (value) => {
    const message = parsed(value);
    if (message) there.then(() => view.receive(message));
  };
}

/** @param {() => void} call */
function whenAnotherPairIsUsed(call) {
  let before = pairInUse()?.pair; // the tab may be opened late
  document.addEventListener("specviz-pair", (event) => {
    const { pair } = event.detail;
    if (before !== undefined && before !== pair) call();
    before = pair;
  });
}

/** An empty or foreign value is no message. @param {string} value */
function parsed(value) {
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

/** Where the server knows nothing, the hole stays on the screen, which is the truth. @param {any} server @param {any} gap */
function answer(server, { run, first, count, answer: fill }) {
  server?.missing_rounds?.({ run, first, count }).then(
    (/** @type {string[] | null} */ messages) => fill((messages ?? []).map(parsed).filter(Boolean)),
    () => {},
  );
}

/** @param {any} server @param {any} handed */
function read(server, { text, chains, speedups, answer: tell }) {
  server.read_served({ text, chains, speedups }).then((/** @type {string} */ message) => tell(parsed(message)), () => tell(null));
}
