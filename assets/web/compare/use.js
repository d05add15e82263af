// Puts the winner's drafter and lengths into the page's controls.

import { make, somebodyPresses } from "../shared/dom.js";
import { speedupVerdict } from "../shared/verdict.js";

/**
 * The fastest lossless drafter of a comparison, once all is measured, and what its interval lets one say.
 *
 * @param {import("../shared/element.js").SpecvizElement} host @param {any} contest
 * @returns {Node[]}
 */
export function winnerParts(host, { phase, rows }) {
  const best = phase !== "running" && rows.find((/** @type {any} */ row) => row.best && row.use);
  if (!best) return [];
  const { drafter, num_draft_tokens: gamma, figures, use } = best;
  const [low, high] = figures.speedup_interval ?? [];
  const verdict = speedupVerdict(host.say, figures.speedup_measured, low, high).text;
  return [make("span", { text: host.say("compare.winner", { drafter, gamma, verdict }) }), ...useButton(host, use)];
}

/**
 * A button for settings, by the names of the controls; nothing where no page could set them.
 *
 * @param {import("../shared/element.js").SpecvizElement} host
 * @param {Record<string, any> | null | undefined} settings
 * @returns {Node[]}
 */
export function useButton(host, settings) {
  if (!settings || !somebodyPresses()) return [];
  const done = make("span", { class: "quiet", role: "status" });
  const press = () => {
    // The page answers with one of the two: it has set its controls, or has said why not.
    const answered = new AbortController();
    const on = (/** @type {string} */ name, /** @type {string} */ text) => document.addEventListener(name, () => {
      answered.abort();
      done.textContent = text;
    }, { signal: answered.signal });
    on("specviz-set", host.say("compare.in_use"));
    on("specviz-refused", "");
    host.tell("specviz-press", { settings, press: null });
  };
  return [make("button", { type: "button", class: "use", part: "use", text: host.say("compare.use"), on: { click: press } }), done];
}
