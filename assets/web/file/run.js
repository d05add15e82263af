// The page of one run in a file of its own (specviz/views/run_page.py writes it): <specviz-run> and <specviz-charts>, in
// each language of the page. Nothing comes from anywhere else, so it works offline, and from a folder.

import "../charts/element.js";
import "../run/element.js";
import { make } from "../shared/dom.js";
import { speaker } from "../shared/words.js";
import { react } from "./plot.js";

/**
 * What the file carries: the run's rounds; and what is said of it, by language. Messages are JSON.
 *
 * @typedef {{ name: string, words: Record<string, import("../shared/words.js").Text>, made: string, start: string, end: string,
 *   labels: string[], charts: Record<string, any> }} Said
 * @typedef {{ rounds: string, languages: Record<string, Said> }} Given
 */

/** @type {Given} */
const given = await unpacked(/** @type {HTMLElement} */ (document.getElementById("given")).textContent ?? "");

Object.assign(window, { Plotly: { react } });

const dark = matchMedia("(prefers-color-scheme: dark)");
const tint = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", tint);
tint();
show(document.documentElement.lang);

/** @param {string} language */
function show(language) {
  const { words, made, start, end, labels, charts } = given.languages[language];
  const say = speaker(words);
  const shown = /** @type {import("../run/element.js").SpecvizRun | null} */ (document.querySelector("specviz-run"));
  const pinned = shown?.pinned;
  document.documentElement.lang = language;
  document.title = say("file.title");
  const [run, figures] = [make("specviz-run"), make("specviz-charts")];
  document.body.replaceChildren(
    make("header", {}, make("h1", { text: say("file.brand") }), make("p", { text: say("file.subtitle") }), make("p", { text: made }), ...others(language)),
    make("main", {}, run, figures));
  run.words = figures.words = words;
  run.receive({ kind: "trace", parts: [start, given.rounds, end].map((one) => JSON.parse(one)), charts });
  figures.receive({ kind: "charts", labels, charts, file: "" });
  if (pinned) run.choose(pinned.round, pinned.index);
}

/** The ways into the other languages. @param {string} shown */
function others(shown) {
  return Object.entries(given.languages).filter(([language]) => language !== shown).map(([language, { name }]) =>
    make("button", { type: "button", lang: language, text: name, on: { click: () => {
      show(language);
      /** @type {HTMLElement} */ (document.querySelector("header button")).focus();
    } } }));
}

/** Packed: JSON, by gzip, in base64. @param {string} packed */
function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
