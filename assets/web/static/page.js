// The live page without a server: the controls, the page's own elements, and a worker that runs the embedded pair.
// `python -m specviz static` writes the folder (specviz/views/static_site.py); site.json says what lies in it.

import "../charts/element.js";
import "../gallery/element.js";
import "../quiz/element.js";
import "../run/element.js";
import { make } from "../shared/dom.js";
import { speaker } from "../shared/words.js";
import { Controls } from "./controls.js";

/** @typedef {{ kind: string, [field: string]: any }} Message */

const home = new URL("../../", import.meta.url);
/** @param {string} path */
const read = async (path) => (await fetch(new URL(path, home))).json();

const site = await read("site.json");
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });

/** @type {Message[]} what the run on the screen was told, to tell it again in another language */
let told = [];
/** @type {import("./controls.js").Asked | null} of the last run that was made here */
let asked = null;
let phase = "loading"; // then "idle" or "running"; "broken" where the models never came
let pressed = false; // before they had come
let bytes = 0; // of the models, as far as they have come
/** @type {import("../shared/words.js").Say} */ let say;
/** @type {Controls} */ let controls;
/** @type {any} */ let view;

const dark = matchMedia("(prefers-color-scheme: dark)");
const tint = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", tint);
tint();

/** Draws the page in a language, with what it shows by now. @param {string} language */
function show(language) {
  const { words } = site.languages[language];
  const before = controls?.settings;
  say = speaker(words);
  const [title, subtitle] = [say("file.brand"), say("static.subtitle")];
  document.documentElement.lang = language;
  document.title = `${title}: ${subtitle}`;
  controls = new Controls(say, site.presets, { go, stop: () => worker.postMessage({ stop: true }) });
  if (before) controls.set(before);
  view = make("specviz-run");
  const [charts, gallery, quiz] = [make("specviz-charts"), make("specviz-gallery"), make("specviz-quiz")];
  const others = Object.keys(site.languages).filter((one) => one !== language);
  document.body.replaceChildren(
    make("header", {}, make("h1", { text: title }), make("p", { text: subtitle }), make("p", { text: say("static.about") }),
      ...others.map((one) => make("button", { type: "button", lang: one, text: site.languages[one].name, on: { click: () => turn(one) } })), quiz),
    make("main", {}, controls.form, view, charts, gallery));
  for (const element of [view, charts, gallery, quiz]) element.words = words;
  quiz.receive(site.quiz);
  charts.receive({ kind: "charts", charts: {}, file: "" });
  told.forEach(pass);
  gallery.receive({ kind: "gallery", shown: view.share?.recording ?? null, cards: site.recordings.map((/** @type {string} */ name) =>
    ({ name, title: say(`traces.${name}_title`), about: say(`traces.${name}_about`) })) });
  controls.show(phase === "running");
  report();
}

/** @param {string} language */
function turn(language) {
  show(language);
  /** @type {HTMLElement} */ (document.querySelector("header button")).focus();
}

/** How far the models have come. */
function report() {
  const size = { loaded: 10 * Math.floor(bytes / 1e7), size: site.bytes / 1e6 }; // in steps, because each is read aloud
  if (phase === "loading") controls.tell(say("static.loading", size), bytes / site.bytes);
  else controls.tell(say("static.ready", size));
}

/** Elements put texts in the place of keys, in the message itself. @param {Message} message */
const pass = (message) => view.receive(structuredClone(message));

/** Starts what the controls ask for, once the models are there. */
function go() {
  pressed = phase === "loading";
  if (pressed) pass({ kind: "waiting", text: { say: "static.waiting" } });
  if (phase !== "idle") return;
  asked = controls.settings;
  controls.set({ coins: "" });
  const { measured, ...settings } = asked;
  const { drafter, num_draft_tokens, temperature, seed, coins } = settings;
  const parts = [...(temperature && drafter !== "plain" ? [{ say: "ways.rule_token" }] : []),
    temperature ? { say: "generate.temperature", value: temperature } : { say: "generate.greedy" }, { say: "generate.seed", value: seed },
    ...(coins ? [{ say: "generate.coins", coins }] : []), { say: "passes.browser" }];
  const opening = { prompt: settings.prompt, drafter: drafter === "plain" ? null : { say: `ways.${drafter}` }, num_draft_tokens, greedy: temperature === 0,
    sampling: { temperature, top_k: 0, top_p: 1, min_p: 0 }, pair: { say: "page.pair_with_draft", ...site.pair }, settings: { join: " · ", parts }, coins };
  phase = "running";
  controls.show(true);
  worker.postMessage({ run: { ...settings, measured, opening } });
}

worker.onmessage = ({ data }) => {
  if (data.failure) return fail(data.failure);
  if (data.bytes) bytes = data.bytes;
  if (data.ready || data.idle) phase = "idle";
  if (data.message) receive(data.message);
  else report();
  if (data.ready && pressed) go();
  controls.show(phase === "running");
};
worker.onerror = ({ message }) => fail(message);

/** @param {string} error as the browser words it */
function fail(error) {
  const text = say("static.failed", { error });
  controls.tell(text);
  if (phase === "running" || pressed) pass({ kind: "error", text });
  phase = phase === "loading" ? "broken" : "idle";
  controls.show(false);
}

/** @param {Message} message of the worker's */
function receive(message) {
  if (message.kind === "start") [told, phase] = [[], "running"];
  // With its settings a run can be branched off at a coin.
  if (message.kind === "end") message = { ...message, share: { pair: site.pair.name, settings: asked, query: null, file: "" } };
  told.push(message);
  pass(message);
}

document.addEventListener("specviz-choose", async ({ detail: { name } }) => {
  const recording = await read(`runs/${name}.json`);
  if (phase === "running") return; // pressed meanwhile
  told = [recording];
  told.forEach(pass);
});
document.addEventListener("specviz-can-press", (event) => phase === "idle" && event.preventDefault());
document.addEventListener("specviz-press", ({ detail: { settings } }) => {
  controls.set(settings);
  go();
});

const wanted = new URLSearchParams(location.search).get("lang") ?? navigator.language.slice(0, 2);
told = [await read(`runs/${site.recordings[0]}.json`)];
show(wanted in site.languages ? wanted : Object.keys(site.languages)[0]);
const absolute = (/** @type {string} */ path) => new URL(path, home).href;
const { tokenizer, ...models } = site.models;
worker.postMessage({ load: { tokenizer: absolute(tokenizer), ...Object.fromEntries(Object.entries(models).map(([role, { config, files }]) =>
  [role, { config: absolute(config), files: files.map(absolute) }])) } });
