// What an answer of a server's, its speed or its samples come to: how far it is, sentences, a table, what may be wrong, and
// a report for whoever maintains the engine. All of it is written by specviz/views/server_messages.py.

import { findingItems } from "../served/diagnosis.js";
import { make, setText } from "../shared/dom.js";

/** @typedef {import("./element.js").Host} Host */

/** @param {Host} host @param {string} what is asked @param {...Node} between what stands behind sentences and table */
export function resultParts(host, what, ...between) {
  const { ui, say } = host;
  const copied = make("span", { class: "quiet", role: "status" });
  const parts = {
    track: make("div", { class: "track idle" }, make("i")),
    finding: make("p", { class: "finding", part: `${what}-finding` }),
    notes: make("ul", { class: "notes", part: `${what}-notes` }),
    table: make("div", { class: "scroll hidden", tabindex: "0", role: "region", "aria-label": say(`server.${what}_title`) }),
    findings: make("ul", { class: "notes", part: `${what}-findings` }),
    report: make("pre", { class: "plain code", tabindex: "0", part: `${what}-report` }),
  };
  const copy = () => navigator.clipboard.writeText(parts.report.textContent ?? "").then(() => setText(copied, say("server.copied")), () => getSelection()?.selectAllChildren(parts.report));
  const told = make("section", { class: "hidden" }, make("h3", { text: say("server.report") }), parts.report,
    make("div", { class: "actions" }, make("button", { type: "button", class: "act", text: say("server.copy"), on: { click: copy } }), copied));
  const doctor = make("section", { class: "hidden" }, make("h3", { text: say("doctor.title") }), parts.findings);
  ui.cards[what] = { ...ui.cards[what], ...parts, told, doctor };
  return [parts.track, parts.finding, parts.notes, parts.table, ...between, doctor, told];
}

/** A card of its own. @param {Host} host @param {string} what is asked @param {...Node} fields */
export function resultCard(host, what, ...fields) {
  const { ui, say } = host;
  ui.cards[what] = {};
  const limits = make("p", { class: "quiet", part: `${what}-limits` });
  const card = make("section", { class: "card", "aria-label": say(`server.${what}_title`) }, make("h2", { text: say(`server.${what}_title`) }),
    make("p", { class: "lead", text: say(`server.${what}_lead`) }), limits, ...fields, host.action(what), ...resultParts(host, what));
  Object.assign(ui.cards[what], { card, limits });
  return card;
}

/** @param {Host} host @param {import("../shared/element.js").Message} message */
export function renderResult({ ui }, { kind, phase, fraction = null, finding = "", notes = [], table = null, findings = [], report = "" }) {
  const parts = ui.cards[kind];
  parts.track.classList.toggle("idle", phase !== "running" || fraction === null);
  parts.track.firstElementChild.style.width = `${100 * (fraction ?? 0)}%`;
  setText(parts.finding, finding);
  parts.notes.replaceChildren(...notes.map((/** @type {string} */ text) => make("li", { text })));
  parts.table.classList.toggle("hidden", !table);
  if (table) parts.table.replaceChildren(make("table", { part: `${kind}-table` },
    make("thead", {}, make("tr", {}, ...table.heads.map((/** @type {string} */ text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...table.rows.map((/** @type {any[]} */ row) => make("tr", {}, ...row.map((text, i) => make(i ? "td" : "th", { scope: i ? null : "row", text })))))));
  parts.doctor.classList.toggle("hidden", !findings.length);
  parts.findings.replaceChildren(...findingItems(findings));
  parts.told.classList.toggle("hidden", !report);
  setText(parts.report, report);
}
