// Shows the prompt as the model reads it, filled into its chat template, and the number of its tokens, while unfolded.

import { speaker } from "../shared/words.js";
import { pairInUse } from "./pair.js";

const ASK_AFTER = 250; // ms since the last key
const LOOK_EVERY = 500; // ms: presets and links fill in the prompt later, and no event says when

/**
 * @param {import("./view.js").Component} component
 * @param {{ words: Record<string, import("../shared/words.js").Text> }} given
 */
export function join({ element, server }, { words }) {
  const say = speaker(words);
  const box = /** @type {HTMLDetailsElement} */ (element.querySelector("details"));
  const [text, count] = /** @type {HTMLElement[]} */ ([box.querySelector("pre"), box.querySelector("b")]);
  let timer = 0;
  let asked = "";
  /** What is to be read; null for a pair without a template, of which there is nothing to show. */
  const wanted = () => {
    const pair = pairInUse();
    const chat = /** @type {HTMLInputElement | null} */ (document.querySelector("#chat input"));
    if (!box.open || !pair || !chat) return null;
    const { value } = /** @type {HTMLTextAreaElement} */ (document.querySelector(".sv-prompt textarea"));
    return { name: pair.name, prompt: value, chat: chat.checked };
  };
  const ask = () => {
    const given = wanted();
    if (!given) return;
    const mine = (asked = JSON.stringify(given));
    server.read(given).then((/** @type {[string, number | null]} */ [read, n]) => {
      if (mine !== asked) return; // a later answer is on its way
      text.textContent = read;
      count.textContent = n === null ? "" : say("common.tokens", { n });
    });
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, ASK_AFTER);
  };
  box.addEventListener("toggle", ask);
  document.querySelector(".sv-fields")?.addEventListener("input", soon);
  document.addEventListener("specviz-pair", soon);
  const looking = setInterval(() => {
    const given = wanted();
    if (given && JSON.stringify(given) !== asked) soon();
  }, LOOK_EVERY);
  return () => clearInterval(looking);
}
