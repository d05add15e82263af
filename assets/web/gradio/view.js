// Joins a gr.HTML component to the element in it: the component's values are the element's messages, as JSON; an event
// of the element submits the component, and rounds that were lost are asked of the server. What was measured of a pair
// goes when the page uses another one. The texts are a module, too (specviz/ui/routes/web_files.py).

/** @import { SpecvizElement } from "../shared/element.js" */

import { pairInUse } from "./pair.js";

/**
 * What a component gives (load.js).
 *
 * @typedef {{ element: HTMLElement, trigger: (event: string, data?: any) => void, server: any }} Component
 */

/**
 * @param {Component} component
 * @param {{ name: string, language: string, submits: string | null }} given the element's name; the page's language; the
 *   event on which to submit
 * @returns {(value: string) => void} takes a value
 */
export function join({ element, trigger, server }, { name, language, submits }) {
  const tag = `specviz-${name}`;
  let view = /** @type {SpecvizElement} */ (element.querySelector(tag));
  if (submits) view.addEventListener(submits, (event) => trigger("submit", /** @type {CustomEvent} */ (event).detail));
  view.addEventListener("specviz-ask-missing", (event) => answer(server, event.detail));
  view.addEventListener("specviz-ask-served", (event) => read(server, event.detail));
  view.addEventListener("specviz-call", (event) => call(server, event.detail));
  view.addEventListener("specviz-ask-supposed", (event) => workOut(server, event.detail));
  const wanted = [`../${name}/element.js`, `../words/${language}.js`].map((path) => import(new URL(path, import.meta.url).href));
  const there = Promise.all(wanted).then(([, { words }]) => (view.words = words));
  whenAnotherPairIsUsed(() => there.then((words) => {
    if (!(/** @type {typeof SpecvizElement} */ (view.constructor).measures)) return;
    const fresh = /** @type {typeof view} */ (document.createElement(tag));
    view.replaceWith(fresh);
    view = fresh;
    fresh.words = words;
  }));
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

/** With the models that made the run, if they are there. @param {any} server @param {any} wanted */
function workOut(server, { settings, pair, what, answer: tell }) {
  const facts = pairInUse();
  const asked = facts && facts.pair === pair ? server?.supposed_round?.({ name: facts.name, settings, what }) : null;
  Promise.resolve(asked).then((message) => tell(message ? parsed(message) : null), () => tell(null));
}

/** @param {any} server @param {any} asked */
function call(server, { name, wanted, answer: tell }) {
  server[name](wanted).then(tell, () => tell(null));
}

/** @param {any} server @param {any} handed */
function read(server, { text, chains, speedups, answer: tell }) {
  server.read_served({ text, chains, speedups }).then((/** @type {string} */ message) => tell(parsed(message)), () => tell(null));
}
