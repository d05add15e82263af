// Does it pay here? Yes or no, with how many requests at once, the same on a server, and the figures behind it.

import { make } from "../shared/dom.js";
import { useButton } from "./use.js";

/** @typedef {import("../shared/element.js").SpecvizElement} Host */

/** A table with its head; the first columns hold words. @param {string[][]} table @param {string} label */
function tableOf([head, ...rows], label) {
  const cells = (/** @type {string[]} */ texts, /** @type {string} */ tag) => texts.map((text, i) => make(tag, { scope: tag === "th" ? "col" : null, class: i ? "" : "words", text }));
  const table = make("table", { class: "standings" }, make("thead", {}, make("tr", {}, ...cells(head, "th"))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row, "td")))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

/** The rows of each drafter's best length: the first one. @param {string[][]} rows */
const bestOfEach = (rows) => rows.filter(([drafter], i) => rows.findIndex(([other]) => other === drafter) === i);

/**
 * What `Advice` of specviz/views/terminal.py says; before it is there, nothing but what failed.
 *
 * @param {Host} host @param {any} message
 * @returns {Node[]}
 */
export function verdictParts(host, { sentence, more, load, use, flags, flags_head: choice, head, rows, domains, about, faults = [] }) {
  const failed = faults.map((/** @type {string} */ text) => make("p", { class: "note", text: `✗ ${text}` }));
  if (!sentence) return failed;
  const lines = flags.map((/** @type {string[]} */ [server, text, note]) =>
    make("li", {}, make("b", { text: `${server}: ` }), make("code", { translate: "no", text }), note ? ` (${note})` : ""));
  return [
    make("p", { class: "answer", part: "answer", text: sentence }),
    ...(more ? [make("p", { part: "more", text: more })] : []),
    ...(use ? [make("p", { class: "winner" }, ...useButton(host, use))] : []),
    ...(load ? [make("p", { class: "quiet", part: "load", text: load })] : []),
    ...(lines.length ? [make("h3", { text: choice }), make("ul", { class: "flags", part: "flags" }, ...lines)] : []),
    tableOf([head, ...bestOfEach(rows)], host.say("compare.table")),
    ...(domains.length ? [tableOf(domains, host.say("compare.by_domain"))] : []),
    make("p", { class: "quiet", text: about }), ...failed,
  ];
}
