// What limits the last run.

import { make } from "../shared/dom.js";
import { key } from "../shared/frame.js";
import { speedupVerdict } from "../shared/verdict.js";
import { ms, percent, runName, times, two } from "./figures.js";
import { lastRun } from "./state.js";

/** @typedef {import("./state.js").Lab} Lab */

/** @param {Lab} lab */
export function diagnosisCard(lab) {
  lab.ui.diagnosis = make("div", { class: "diagnosis", part: "diagnosis" });
  return make("section", { class: "card", "aria-labelledby": "diagnosis-title" }, make("h2", { id: "diagnosis-title", text: lab.say("why.diagnosis_title") }), lab.ui.diagnosis);
}

/** @param {Lab} lab */
export function renderDiagnosis(lab) {
  const run = lastRun(lab);
  lab.ui.diagnosis.replaceChildren(...(run ? diagnosed(lab, run) : invitation(lab)));
}

/** @param {Lab} lab @param {Record<string, any>} settings */
function apply(lab, settings) {
  lab.awaited = true;
  lab.host.tell("specviz-press", { settings, press: "generate", back: "why" });
}

/** @param {Lab} lab @param {string} text @param {Record<string, any>} settings */
const action = (lab, text, settings) => make("button", { type: "button", class: "act", text, on: { click: () => apply(lab, settings) } });

/** @param {Lab} lab */
function invitation(lab) {
  return [make("p", { class: "lead", text: lab.say("why.no_run") }), action(lab, lab.say("why.make_run"), lab.state.story)];
}

/** @param {Lab} lab @param {any} run */
function diagnosed(lab, run) {
  const { figures, diagnosis } = run;
  const source = run.repeats ? lab.say(run.temperature ? "why.of_texts" : "why.of_repeats", { n: run.repeats }) : lab.say("why.of_this_run");
  return [
    make("p", { class: "meta", part: "source", text: `${runName(lab, run)}. ${source}` }),
    ...(run.disturbed ? [make("p", { class: "note", part: "disturbed", text: lab.say(`why.disturbed_${run.disturbed}`) })] : []),
    make("p", { class: "finding", part: "verdict", "data-pays": diagnosis.pays, text: verdictText(lab, run) }),
    make("h3", { text: lab.say("why.steps_title") }), stepBars(lab, run),
    make("p", { class: "finding", part: "limit", "data-limit": diagnosis.limit, text: limitText(lab, diagnosis) }),
    make("h3", { text: lab.say("why.split_title", { ms: ms(figures.seconds) }) }), timeSplit(lab, figures),
    make("h3", { text: lab.say("why.changes_title") }), ...changes(lab, run),
    make("p", { class: "quiet", text: [lab.say(`why.one_${figures.one_source}`, { ms: ms(figures.one) }), ...(diagnosis.formula === null ? [] : [lab.say(diagnosis.with_passes ? "why.forecast_passes" : "why.forecast_one")])].join(" ") }),
  ];
}

/** @param {Lab} lab @param {any} run */
function verdictText(lab, { figures, diagnosis, low, high }) {
  const { open, text } = speedupVerdict(lab.say, diagnosis.speedup, low, high);
  if (open) return lab.say("why.verdict_open", { range: text });
  const found = `${figures.speedup === null ? "parts" : "measured"}_${diagnosis.pays ? "pays" : "loses"}`;
  return lab.say(`why.verdict_${found}`, { speedup: text });
}

/** @param {Lab} lab @param {any} diagnosis */
function limitText(lab, { limit, gain }) {
  return gain > 1.005 ? `${lab.say(`why.limit_${limit}`)} ${lab.say("why.limit_gain", { gain: two(gain) })}` : lab.say("why.limit_nothing");
}

/**
 * From the ideal down to what came out: each bar is the speedup that one more cause leaves.
 *
 * @param {Lab} lab @param {any} run
 */
function stepBars(lab, { figures, diagnosis, low, high }) {
  const all = diagnosis.steps.filter((step) => step.cause !== "short" || figures.depth < figures.num_draft_tokens - 0.05);
  if (figures.one_source === "round") all.splice(all.findIndex((step) => step.cause === "verify"), 1);
  const values = {
    gamma: figures.num_draft_tokens, depth: two(figures.depth), alpha: two(figures.alpha), cost: two(figures.cost_coefficient), ratio: two(figures.verify / figures.one),
    draft: ms(figures.draft), rest: ms(figures.rest),
  };
  const rows = all.map(({ cause, speedup }) => [cause, lab.say(`why.step_${cause}`, values), speedup, times(speedup)]);
  const { open } = speedupVerdict(lab.say, figures.speedup, low, high);
  if (figures.speedup !== null) rows.push(["measured", lab.say("why.step_measured"), figures.speedup, open ? `${two(low)}–${times(high)}` : times(figures.speedup)]);
  const most = Math.max(...rows.map((row) => row[2]));
  return make("ol", { class: "steps", part: "steps" }, ...rows.map(([cause, text, speedup, shown]) => make("li", { "data-cause": cause, "data-limit": cause === diagnosis.limit && diagnosis.gain > 1.005 },
    make("span", { class: "what", text }), make("b", { text: shown }),
    make("span", { class: "bar", "aria-hidden": "true" }, make("i", { style: `width:${(100 * speedup) / most}%` }), make("s", { style: `left:${100 / most}%` })))));
}

/** @param {Lab} lab @param {any} figures */
function timeSplit(lab, { draft, verify, rest, seconds }) {
  const parts = [["draft", draft], ["verify", verify], ["rest", rest]];
  return make("div", { part: "split" },
    make("div", { class: "split", "aria-hidden": "true" }, ...parts.map(([name, part]) => make("i", { class: name, style: `width:${(100 * part) / seconds}%` }))),
    make("ul", { class: "legend" }, ...parts.map(([name, part]) => key(`box ${name}`, lab.say(`why.split_${name}`, { percent: percent(part / seconds), ms: ms(part) })))));
}

/** @param {Lab} lab @param {any} run */
function changes(lab, { figures, diagnosis }) {
  if (diagnosis.formula === null) return [make("p", { text: lab.say(!figures.chain ? "why.no_forecast_tree" : figures.at_once ? "why.no_forecast_once" : "why.no_forecast_short") })];
  const lines = [make("p", { part: "base", text: lab.say("why.changes_base", { speedup: times(diagnosis.formula) }) })];
  if (figures.alpha <= figures.cost_coefficient) lines.push(make("p", { text: lab.say("why.cannot_pay", { alpha: two(figures.alpha), cost: two(figures.cost_coefficient) }) }));
  else if (diagnosis.best_formula < 1) lines.push(make("p", { text: lab.say("why.no_gamma_pays", { speedup: times(diagnosis.best_formula) }) }));
  const said = diagnosis.changes.map(({ what, value, speedup }, i) => {
    const values = { value: what === "gamma" ? value : two(value), speedup: times(speedup) };
    const item = make("li", { "data-change": what }, make("span", {}, i ? "" : "★ ", lab.say(`why.change_${what}`, values)));
    if (what === "gamma") item.append(" ", action(lab, lab.say("why.run_with", { gamma: value }), { num_draft_tokens: value, coins: "" }));
    return item;
  });
  if (!said.some((item) => item.dataset.change === "gamma") && diagnosis.best_formula >= 1) lines.push(make("p", { text: lab.say("why.gamma_is_good", { gamma: figures.num_draft_tokens }) }));
  return [...lines, make("ul", { class: "changes", part: "changes" }, ...said)];
}
