// An answer that is watched, in the view of a run.

import { hand } from "../moment/moment.js";
import { make, setText } from "../shared/dom.js";
import { resultParts } from "./result.js";

/** @typedef {import("./element.js").Host} Host */

/** What the run tells the page around it, where others follow the page's own run. */
const OWN = ["specviz-finished", "specviz-share", "specviz-branch"];

/** The files of a run, and the texts of their buttons. */
const FILES = { ".json": "generate.download", ".html": "traces.page", ".csv": "traces.table" };

/** @param {Host} host */
export function watchCard(host) {
  const { ui, say } = host;
  ui.shown = make("div", { class: "shown hidden", part: "shown" });
  ui.drawn = make("div", { class: "hidden" }, make("slot", { name: "charts" }));
  ui.plain = make("pre", { class: "plain hidden", tabindex: "0", part: "text" });
  ui.files = make("div", { class: "actions hidden", part: "files" }, ...Object.entries(FILES).map(([suffix, key]) =>
    make("button", { type: "button", class: "act", text: say(key), on: { click: () => save(host, suffix) } })));
  const number = (/** @type {string} */ name, /** @type {any} */ limits) => host.field(name, make("input", { type: "number", inputmode: "decimal", ...limits }));
  const neutral = host.field("neutral", make("input", { type: "checkbox", checked: true }));
  neutral.classList.add("ticked");
  const card = make("section", { class: "card", "aria-label": say("server.watch_title") }, make("h2", { text: say("server.watch_title") }),
    make("p", { class: "lead", text: say("server.watch_lead") }), host.field("prompt", make("textarea", { rows: 3 })),
    make("div", { class: "typed" }, number("max_new_tokens", { min: 1, step: 1 }), number("temperature", { min: 0, max: 2, step: 0.1 }), neutral),
    host.action("watch"), ui.shown, ui.plain, ...resultParts(host, "watch", ui.drawn, ui.files));
  ui.cards.watch.card = card;
  return card;
}

/** @param {Host} host @param {import("../shared/element.js").Message} message */
export function renderWatch(host, { phase, run, text, key, file }) {
  const { ui } = host;
  host.watched = key;
  ui.shown.classList.toggle("hidden", !run.length); // before the run begins: it comes into sight
  ui.drawn.classList.toggle("hidden", !run.length); // or they would still be the last run's
  if (run.length) showRun(host, run);
  ui.plain.classList.toggle("hidden", !text);
  setText(ui.plain, text);
  ui.files.classList.toggle("hidden", phase === "running" || !file);
  if (file && ui.charts) ui.charts.file = file;
}

/** @param {Host} host @param {string[]} messages of <specviz-run>, as JSON */
function showRun(host, messages) {
  const { ui } = host;
  if (!ui.run) {
    ui.run = make("specviz-run", { apart: true });
    ui.charts = make("specviz-charts", { apart: true, slot: "charts" });
    for (const type of OWN) ui.run.addEventListener(type, (/** @type {Event} */ event) => event.stopPropagation());
    ui.run.addEventListener("specviz-charts", (/** @type {CustomEvent} */ event) => {
      event.stopPropagation();
      ui.charts.draw(event.detail);
    });
    ui.run.words = ui.charts.words = host.texts;
    ui.charts.receive({ kind: "charts", charts: {}, file: "server", plotly: host.offer.plotly });
    ui.shown.append(ui.run);
    host.append(ui.charts);
  }
  for (const message of messages) ui.run.receive(JSON.parse(message));
}

/** @param {Host} host @param {string} suffix */
function save(host, suffix) {
  host.call("run_file", { run: host.watched, suffix }, (file) => {
    if (file) hand(new Blob([file[1]]), file[0]);
    else setText(host.ui.cards.watch.says, host.say("server.file_gone"));
  });
}
