// The page's name and, beside it, what the models are at work on: whoever shares the machine sees why it is busy.

import { speaker } from "../shared/words.js";
import { isIdle } from "./tabs.js";

const ASK_EVERY = 3000; // ms

/** @param {import("./view.js").Component} component @param {{ words: Record<string, import("../shared/words.js").Text>, started: string, cookie: string }} given */
export function join({ element, server }, { words, started, cookie }) {
  nameBrowser(cookie);
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
  const tell = (/** @type {string | null} */ text) => {
    told.textContent = text ?? usual;
    told.classList.toggle("sv-at-work", text !== null);
  };
  let answers = true;
  // Nothing, or an error, where the server is gone or the page is being left.
  const show = (/** @type {[string, string[], number | null] | undefined} */ answer) => {
    const view = /** @type {any} */ (document.querySelector("specviz-run"));
    if (answers !== Boolean(answer)) {
      answers = Boolean(answer);
      view?.receive({ kind: "server", answers });
    }
    if (!answer) return tell(say("line.gone"));
    const [running, names, seconds] = answer;
    // What it waits for went with the server. Gradio loads the page again where its stream broke, not where it was ended.
    if (running !== started && view?.busy) return location.reload();
    tell(running === started ? sentence(say, names, seconds) : say("line.restarted"));
  };
  setInterval(() => {
    if (document.visibilityState === "visible") server.in_line({}).then(show, () => show(undefined));
  }, ASK_EVERY);
  return () => {};
}

/**
 * Gives this browser a name of its own until it is closed, so that the line knows its tabs; in another site's frame, too, where
 * it is a name for there alone.
 *
 * @param {string} cookie
 */
function nameBrowser(cookie) {
  const secure = location.protocol === "https:";
  if (origin === "null" || (!secure && window !== top)) return; // a sandbox, or a frame whose cookies browsers refuse
  if (document.cookie.split("; ").some((one) => one.startsWith(`${cookie}=`))) return;
  const where = secure ? "SameSite=None; Secure; Partitioned" : "SameSite=Lax";
  const name = crypto.getRandomValues(new Uint32Array(4)).join("-"); // randomUUID wants https
  document.cookie = `${cookie}=${name}; path=/; ${where}`;
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
