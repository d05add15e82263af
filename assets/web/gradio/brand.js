// The page's name and, beside it, what the models are at work on: whoever shares the machine sees why it is busy.

import { speaker } from "../shared/words.js";
import { isIdle } from "./tabs.js";

const ASK_EVERY = 3000; // ms

/** @param {import("./view.js").Component} component @param {{ words: Record<string, import("../shared/words.js").Text>, started?: string }} given */
export function join({ element, server }, { words, started }) {
  const say = speaker(words);
  const told = /** @type {HTMLElement} */ (element.querySelector("p"));
  const usual = told.textContent;
  const head = /** @type {HTMLElement} */ (element.closest(".sv-head"));
  // The controls end with the window, however high the head above them is.
  const measure = () => {
    const below = head.parentElement?.querySelector(".sv-main") ?? head;
    document.documentElement.style.setProperty("--sv-above", `${Math.ceil(below.getBoundingClientRect().top + window.scrollY + document.body.scrollTop)}px`);
  };
  new ResizeObserver(measure).observe(head);
  // Nothing, or an error, where the server is gone or the page is being left; the page says that itself.
  const show = (/** @type {[string | undefined, string[], number | null]} */ [running, names, seconds] = [started, [], null]) => {
    const text = running === started ? sentence(say, names, seconds) : say("line.restarted");
    told.textContent = text ?? usual;
    told.classList.toggle("sv-at-work", text !== null);
  };
  setInterval(() => {
    if (document.visibilityState === "visible") server.in_line({}).then(show, () => show());
  }, ASK_EVERY);
  return () => {};
}

/**
 * What there is to say of the line; null where nothing is.
 *
 * @param {import("../shared/words.js").Say} say @param {string[]} names @param {number | null} seconds
 */
function sentence(say, names, seconds) {
  const [first, ...waiting] = names;
  if (!first) return null;
  const n = waiting.length;
  // What this page itself has started, it shows elsewhere.
  if (!isIdle()) return n ? say("line.with_you", { n }) : null;
  const parts = [say("line.now", { what: first })];
  if (n) parts.push(say("line.more", { n }));
  if (seconds !== null) parts.push(say("line.left_over", { seconds: Math.max(1, Math.round(seconds)) }));
  return parts.join(" · ");
}
