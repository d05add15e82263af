// What may be wrong, with what would settle it; and published figures beside the reader's own.

import { make } from "../shared/dom.js";
import { two } from "../why/figures.js";

/** @typedef {import("./element.js").Host} Host */

/** The columns of a published figure, in the order of the table. */
const COLUMNS = ["method", "target", "task", "temperature", "load", "hardware", "drafted", "tokens", "speedup", "source", "positions"];

/** Columns whose plain names are those of longer sentences. */
const SHORT = new Set(["load", "speedup"]);

/** @param {Host} host */
export function diagnosisPart(host) {
  const { ui, say } = host;
  ui.findings = make("ul", { class: "notes", part: "findings" });
  ui.method = make("select", { "aria-label": say("doctor.method"), part: "method", on: { change: () => renderAnchors(host, host.state.figures) } });
  ui.range = make("p", { class: "finding", part: "range" });
  ui.anchors = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("doctor.anchors_title") });
  ui.published = make("details", { part: "published", on: { toggle: () => renderAnchors(host, host.state.figures) } }, make("summary", { text: say("doctor.anchors_title") }),
    make("p", { class: "quiet", text: say("doctor.anchors_lead") }), ui.method, ui.range, ui.anchors);
  return make("section", {}, make("h3", { text: say("doctor.title") }), make("p", { class: "quiet", text: say("doctor.lead") }), ui.findings, ui.published);
}

/** @param {Host} host @param {any} figures */
export function renderDiagnosis(host, figures) {
  const { ui, say } = host;
  const told = figures.findings.length ? figures.findings : [{ text: say("doctor.nothing"), causes: [] }];
  ui.findings.replaceChildren(...findingItems(told));
  const methods = [...new Set(figures.anchors.map((/** @type {any} */ one) => one.method))];
  const chosen = ui.method.value;
  ui.method.replaceChildren(make("option", { value: "", text: say("doctor.all_methods") }), ...methods.map((name) => make("option", { value: name, text: name })));
  ui.method.value = chosen;
  renderAnchors(host, figures);
}

/** @param {any[]} findings of specviz/views/served_diagnosis.py */
export const findingItems = (findings) => findings.map(({ text, causes }) => make("li", {}, make("span", { text }),
  ...(causes.length ? [make("ul", {}, ...causes.map((/** @type {any} */ one) =>
    make("li", {}, make("strong", { text: one.cause }), make("span", { text: ` ${one.settles}` }))))] : [])));

/** Only once somebody looks. @param {Host} host @param {any} figures */
function renderAnchors({ ui, say }, { anchors, tokens_per_pass: own }) {
  if (!ui.published.open) return;
  const rows = anchors.filter((/** @type {any} */ one) => !ui.method.value || one.method === ui.method.value);
  const tokens = rows.map((/** @type {any} */ one) => one.tokens).filter(Boolean);
  ui.range.classList.toggle("hidden", !ui.method.value || !tokens.length);
  const values = { method: ui.method.value, least: Math.min(...tokens), most: Math.max(...tokens), n: tokens.length, tokens: own };
  ui.range.textContent = say(own === null ? "doctor.range_alone" : "doctor.range", values);
  const head = COLUMNS.map((name) => make("th", { scope: "col", text: say(SHORT.has(name) ? `doctor.${name}_short` : `doctor.${name}`) }));
  ui.anchors.replaceChildren(make("table", { part: "anchors" }, make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows.map((/** @type {any} */ one) => make("tr", {}, ...COLUMNS.map((name) => cell(one[name], name)))))));
}

/** @param {any} value @param {string} name */
function cell(value, name) {
  const exact = name === "tokens" || name === "speedup";
  return make("td", { text: value === undefined ? "–" : Array.isArray(value) ? value.map(two).join(" ") : exact ? two(value) : value });
}
