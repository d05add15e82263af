// An answer that is watched: the view of a run, whose rounds are a server's, and the server's own counters beside them.

import { hand } from "../moment/moment.js";
import { findingItems } from "../served/diagnosis.js";
import { make, setText } from "../shared/dom.js";
import { fixed } from "../shared/numbers.js";

/** @typedef {import("./element.js").Host} Host */

/** What the run tells the page around it, where others follow the page's own run. */
const OWN = ["specviz-finished", "specviz-share", "specviz-kept", "specviz-branch"];

/** The files of a run, and the texts of their buttons. */
const FILES = { ".json": "generate.download", ".html": "traces.page", ".csv": "traces.table" };

/** @param {Host} host */
export function watchCard(host) {
  const { ui, say } = host;
  ui.shown = make("div", { class: "shown", part: "shown" });
  ui.plain = make("pre", { class: "plain hidden", tabindex: "0", part: "plain" });
  ui.how = make("ul", { class: "notes", part: "how" });
  ui.counts = make("div", { class: "scroll hidden", tabindex: "0", role: "region", "aria-label": say("server.counts") });
  ui.files = make("div", { class: "actions hidden" }, ...Object.entries(FILES).map(([suffix, key]) =>
    make("button", { type: "button", class: "act", part: `file${suffix.replace(".", "-")}`, text: say(key), on: { click: () => save(host, suffix) } })));
  ui.found = make("ul", { class: "notes", part: "findings" });
  ui.doctor = make("section", { class: "hidden" }, make("h3", { text: say("doctor.title") }), ui.found);
  const number = (/** @type {string} */ name, /** @type {any} */ limits) => host.field(name, make("input", { type: "number", inputmode: "decimal", ...limits }));
  const neutral = host.field("neutral", make("input", { type: "checkbox", checked: true }));
  neutral.classList.add("ticked");
  const card = make("section", { class: "card", "aria-label": say("server.watch_title") }, make("h2", { text: say("server.watch_title") }),
    make("p", { class: "lead", text: say("server.watch_lead") }), host.field("prompt", make("textarea", { rows: 3 })),
    make("div", { class: "typed" }, number("max_new_tokens", { min: 1, step: 1 }), number("temperature", { min: 0, max: 2, step: 0.1 }), neutral),
    host.action("watch"), ui.shown, ui.plain, ui.how, ui.counts, make("slot", { name: "charts" }), ui.files, ui.doctor);
  ui.cards.watch.card = card;
  return card;
}

/** @param {Host} host @param {import("../shared/element.js").Message} message without a run while the server is connected to */
export function renderWatch(host, { phase, run, ...told }) {
  const { ui, say } = host;
  if (!run) return;
  const { tokens, seconds, first_seconds, counts, counted, findings } = told;
  if (run.length) showRun(host, run);
  ui.watched = told;
  ui.shown.classList.toggle("hidden", !run.length && Boolean(told.text));
  ui.plain.classList.toggle("hidden", !told.text);
  setText(ui.plain, told.text);
  const made = tokens ? say("server.made", { tokens: say("common.tokens", { n: tokens }), seconds: fixed(seconds, 2), first: fixed(first_seconds, 2) }) : "";
  setText(ui.cards.watch.says, [say(`server.phase_${phase}`, { reason: told.problem?.text }), made].filter(Boolean).join(" "));
  const over = phase !== "running";
  const notes = [told.how, !told.lengths_known && say("server.lengths_unknown"), told.text && say("server.no_ids", { engine: told.about.engine }),
    over && counts[0] && counted && say(String(counts) === String(counted) ? "server.equal" : "server.unequal"),
    over && counts[0] && !counted && say("server.uncounted")];
  ui.how.replaceChildren(...notes.filter(Boolean).map((text) => make("li", { text })));
  ui.counts.classList.toggle("hidden", !counts[0]);
  ui.counts.replaceChildren(countsTable(host, counts, counted));
  ui.doctor.classList.toggle("hidden", !findings.length);
  ui.found.replaceChildren(...findingItems(findings));
  ui.files.classList.toggle("hidden", !over || !told.file);
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

/** The counts of the rounds beside the server's own. @param {Host} host @param {(number | null)[]} ours @param {(number | null)[] | null} theirs */
function countsTable({ say }, ours, theirs) {
  const heads = ["", "server.put_together", "server.its_counters"].map((key) => make(key ? "th" : "td", { scope: key && "col", text: key && say(key) }));
  const value = (/** @type {number | null | undefined} */ count) => make("td", { text: count ?? say("why.not_known") });
  const rows = ["passes", "drafted", "accepted"].map((name, i) =>
    make("tr", {}, make("th", { scope: "row", text: say(`server.count_${name}`) }), value(ours[i]), value(theirs?.[i])));
  return make("table", { part: "counts" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

/** @param {Host} host @param {string} suffix */
function save(host, suffix) {
  host.call("run_file", { run: host.ui.watched.key, suffix }, (file) => {
    if (!file) return setText(host.ui.cards.watch.says, host.say("server.file_gone"));
    const [name, text] = file;
    hand(new Blob([text]), name);
  });
}
