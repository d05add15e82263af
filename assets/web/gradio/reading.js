// Shows the prompt as the model reads it, filled into its chat template, and the number of its tokens, while unfolded.

import { speaker } from "../shared/words.js";
import { pairInUse } from "./pair.js";

const ASK_AFTER = 250; // ms since the last key

/**
 * @param {import("./view.js").Component} component
 * @param {{ words: Record<string, import("../shared/words.js").Text> }} given
 */
export function join({ element, server }, { words }) {
  const say = speaker(words);
  const box = /** @type {HTMLDetailsElement} */ (element.querySelector("details"));
  const [text, count] = /** @type {HTMLElement[]} */ ([box.querySelector("pre"), box.querySelector("b")]);
  let timer = 0;
  let asked = 0;
  const ask = () => {
    const pair = pairInUse();
    const chat = /** @type {HTMLInputElement | null} */ (document.querySelector("#chat input"));
    // There is no such switch for a pair without a template, and nothing to show.
    if (!box.open || !pair || !chat) return;
    const mine = (asked += 1);
    const { value } = /** @type {HTMLTextAreaElement} */ (document.querySelector(".sv-prompt textarea"));
    server.read({ name: pair.name, prompt: value, chat: chat.checked }).then((/** @type {[string, number | null]} */ [read, n]) => {
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
  // Of the prompt, of the switch beside it, and of the presets, which Gradio fills in later.
  document.querySelector(".sv-fields")?.addEventListener("input", soon);
  document.querySelector(".sv-fields")?.addEventListener("click", soon);
  document.addEventListener("specviz-pair", soon);
  return () => {};
}
