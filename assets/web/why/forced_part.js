// What it would take: the pair's own passes run with drafts that are right as often as the slider says.

import { make, setText } from "../shared/dom.js";
import { times, two } from "./figures.js";
import { isBusy, measuringLine } from "./measuring.js";

/** @typedef {import("./state.js").Lab} Lab */

/** @param {Lab} lab */
export function forcedPart(lab) {
  const { ui, say } = lab;
  ui.forcedLine = measuringLine(lab, "forced");
  ui.runForced = make("button", { type: "button", class: "act", part: "run-forced", on: { click: () => run(lab) } });
  ui.forcedTable = make("div", { class: "scroll hidden", tabindex: "0", role: "region", "aria-label": say("why.forced_title") });
  return make("div", { class: "forced", part: "forced" }, make("h3", { text: say("why.forced_title") }), make("p", { text: say("why.forced_lead") }),
    ui.runForced, ...ui.forcedLine.nodes, ui.forcedTable);
}

/** @param {Lab} lab */
function run(lab) {
  const { alpha, gamma } = lab.state;
  lab.host.tell("specviz-press", { settings: {}, press: "forced", details: { alpha, num_draft_tokens: gamma } });
}

/**
 * A new measurement takes the place of one at the same α and γ, and of those of other models or other passes.
 *
 * @param {Lab} lab @param {any} measured
 */
export function takeForced(lab, measured) {
  const alike = (one) => one.pair === measured.pair && one.kind === measured.kind;
  const same = (one) => one.alpha === measured.alpha && one.num_draft_tokens === measured.num_draft_tokens;
  lab.state.forced = [measured, ...lab.state.forced.filter((one) => alike(one) && !same(one))];
}

/** @param {Lab} lab */
export function renderForced(lab) {
  const { ui, say, state: { alpha, gamma, forced, measuring: { forced: { phase } } } } = lab;
  setText(ui.runForced, say("why.forced_run", { alpha: two(alpha), gamma }));
  ui.runForced.disabled = isBusy(phase);
  ui.forcedLine.show(phase === "running" ? forced[0].fraction : 0, forced[0]?.repeats ?? 0);
  const measured = forced.filter((one) => one.figures);
  ui.forcedTable.classList.toggle("hidden", !measured.length);
  const head = ["alpha", "gamma", "accepted", "tokens", "cost", "speedup", "formula"];
  const row = ({ alpha, num_draft_tokens: gamma, figures }) => [two(alpha), gamma, ratio(figures.acceptance_rate), two(figures.acceptance_length), ratio(figures.cost_coefficient),
    times(figures.speedup_measured), figures.speedup_formula === null ? "–" : times(figures.speedup_formula)];
  if (measured.length) ui.forcedTable.replaceChildren(make("table", { part: "forced-table" }, make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col", text: say(`why.forced_${name}`) })))),
    make("tbody", {}, ...measured.map((one) => make("tr", {}, ...row(one).map((text) => make("td", { text })))))));
}

/** @param {number | null} x */
const ratio = (x) => (x === null ? "–" : two(x));
