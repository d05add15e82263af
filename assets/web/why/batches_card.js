// Many users at once: what the speedup becomes when a pass verifies the drafts of many requests.

import { make, setText } from "../shared/dom.js";
import { tint } from "../shared/tint.js";
import { ms, times, two } from "./figures.js";
import { expectedSpeedup, passRatio, rooflineSeconds } from "../shared/formulas.js";
import { isBusy, measuringLine } from "./measuring.js";
import { sliderRow } from "./sliders.js";

/** @typedef {import("./state.js").Lab} Lab */

/** The draft lengths of the table's rows. */
const LENGTHS = [1, 2, 3, 4, 6, 8, 12, 16];

/** The requests at once of the computed table: those of a server. */
const SERVED = [1, 16, 64, 128, 256, 512];

/** What is typed in, in this order: the GPU, the model, its requests. */
const TYPED = ["bandwidth", "peak", "parameters", "bytes", "rows", "context", "cost"];

/** @param {Lab} lab */
export function batchesCard(lab) {
  const { ui, say } = lab;
  ui.batchLine = measuringLine(lab, "batches");
  ui.places = ["here", "gpu"].map((name) => make("input", { type: "radio", name: "place", value: name, on: { change: () => choose(lab, name) } }));
  ui.typed = Object.fromEntries(TYPED.map((name) => [name, make("input", { type: "number", min: "0", step: "any", value: lab.state.gpu[name], on: { input: () => type(lab, name) } })]));
  ui.gpu = make("div", { class: "typed", part: "gpu" }, ...TYPED.map((name) => make("label", {}, make("span", { text: say(`why.gpu_${name}`) }), ui.typed[name])));
  ui.untyped = make("p", { class: "note hidden", role: "alert", part: "gpu-problem" });
  ui.batchFinding = make("p", { class: "finding", part: "batches-finding" });
  ui.batchTable = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("why.batches_table") });
  ui.batchHow = make("p", { class: "quiet", part: "batches-how" });
  ui.batchTimes = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("why.all_numbers") });
  ui.batchNumbers = make("details", { class: "hidden", part: "batches-numbers" }, make("summary", { text: say("why.all_numbers") }), ui.batchTimes);
  return make("section", { class: "card", "aria-labelledby": "batches-title" },
    make("h2", { id: "batches-title", text: say("why.batches_title") }), make("p", { class: "lead", text: say("why.batches_lead") }),
    ...ui.batchLine.nodes,
    make("fieldset", { class: "source" }, make("legend", { text: say("why.place") }), ...ui.places.map((input) => make("label", {}, input, make("span", { text: say(`why.place_${input.value}`) })))),
    make("div", { class: "sliders" }, sliderRow(lab, "alpha", "shared-alpha")), ui.gpu, ui.untyped,
    make("div", { class: "result" }, ui.batchFinding), ui.batchTable, ui.batchHow, ui.batchNumbers);
}

/** @param {Lab} lab @param {string} place */
function choose(lab, place) {
  lab.state.place = place;
  renderBatches(lab);
}

/** @param {Lab} lab @param {string} name */
function type(lab, name) {
  lab.state.gpu[name] = lab.ui.typed[name].valueAsNumber;
  renderBatches(lab);
}

/** @param {Lab} lab */
export function renderBatches(lab) {
  const { ui, say, state: { batches, place, measuring: { batches: { phase } } } } = lab;
  const measured = batches?.points ?? [];
  ui.batchLine.show(batches?.fraction ?? 0, measured[0]?.repeats ?? 0);
  ui.places.forEach((input) => (input.checked = input.value === place));
  ui.gpu.classList.toggle("hidden", place !== "gpu");
  const missing = place === "gpu" && TYPED.find((name) => !(lab.state.gpu[name] > 0));
  ui.untyped.classList.toggle("hidden", !missing);
  setText(ui.untyped, missing ? say("why.gpu_missing", { field: say(`why.gpu_${missing}`) }) : "");
  ui.batchNumbers.classList.toggle("hidden", place !== "here" || isBusy(phase) || !measured.length);
  const costs = missing ? [] : place === "gpu" ? computed(lab.state.gpu) : isBusy(phase) ? [] : timed(batches, lab.state.cost);
  const columns = costs.map((cost) => ({ ...cost, speedups: LENGTHS.map((gamma) => speedup(lab, cost, gamma)) }));
  setText(ui.batchHow, how(lab));
  ui.batchTable.replaceChildren(...(columns.length ? [speedupTable(lab, columns)] : []));
  setText(ui.batchFinding, columns.length ? finding(lab, columns) : say(place === "here" ? "why.batches_none" : "why.batches_before"));
  if (measured.length) ui.batchTimes.replaceChildren(timesTable(lab));
}

/** @typedef {{ requests: number, draft: number, verify: (gamma: number) => number | null }} Cost in passes over one token of each request */

/** MagicDec (arXiv 2408.11049) looks at long contexts in the same way. @param {any} gpu @returns {Cost[]} */
function computed(gpu) {
  const ratio = (requests, gamma) => rooflineSeconds(gpu, requests, gamma + 1) / rooflineSeconds(gpu, requests, 1);
  return SERVED.map((requests) => ({ requests, draft: gpu.cost, verify: (gamma) => ratio(requests, gamma) }));
}

/** Those requests of which a plain pass was timed, and one that verifies. @param {any} batches @param {number} cost without a draft model @returns {Cost[]} */
function timed(batches, cost) {
  const of = (role, requests) => (batches?.points ?? []).filter((point) => point.role === role && point.requests === requests);
  return (batches?.batches ?? []).flatMap((requests) => {
    const points = of("target", requests);
    if (points.length < 2 || points[0].width !== 1) return [];
    const [step] = of("draft", requests);
    if (batches.draft && !step) return [];
    return [{ requests, draft: step ? step.seconds / points[0].seconds : cost, verify: (gamma) => passRatio({ points }, gamma + 1) }];
  });
}

/** @param {Lab} lab @param {Cost} cost @param {number} gamma */
function speedup(lab, { draft, verify }, gamma) {
  const verified = verify(gamma);
  return verified === null ? null : expectedSpeedup(lab.state.alpha, gamma, draft, verified);
}

/** The place of the highest. @param {(number | null)[]} speedups */
const PAYS = 1.005; // what is written 1.00× gains nothing

const bestOf = (speedups) => speedups.indexOf(Math.max(...speedups.map((one) => one ?? 0)));

/**
 * Where the highest speedup of each column stands, and a line where it stops paying.
 *
 * @param {Lab} lab @param {any[]} columns
 */
function speedupTable(lab, columns) {
  const pays = (x, y) => (columns[x]?.speedups[y] ?? NaN) >= PAYS;
  const known = (x, y) => (columns[x]?.speedups[y] ?? null) !== null;
  const cell = ({ speedups }, x, y) => {
    const one = speedups[y];
    if (one === null) return make("td", { class: "unknown", text: "–", title: lab.say("why.batches_left_out") });
    const edges = [x && known(x - 1, y) && pays(x - 1, y) !== pays(x, y) && "left", y && known(x, y - 1) && pays(x, y - 1) !== pays(x, y) && "top"].filter(Boolean);
    const best = bestOf(speedups) === y;
    return make("td", { style: tint(one), "data-edge": edges.join(" ") || null, "data-best": best, "data-pays": pays(x, y), text: `${best ? "★ " : ""}${times(one)}` });
  };
  const head = make("tr", {}, make("th", { scope: "col", text: "γ ╲ B" }), ...columns.map(({ requests }) => make("th", { scope: "col", text: requests })));
  const rows = LENGTHS.map((gamma, y) => make("tr", {}, make("th", { scope: "row", text: gamma }), ...columns.map((column, x) => cell(column, x, y))));
  return make("table", { class: "map", part: "batches-table", "aria-label": lab.say("why.batches_table") }, make("thead", {}, head), make("tbody", {}, ...rows));
}

/** Up to how many requests some γ pays. @param {Lab} lab @param {any[]} columns */
function finding(lab, columns) {
  const best = columns.map(({ requests, speedups }) => ({ requests, gamma: LENGTHS[bestOf(speedups)], speedup: speedups[bestOf(speedups)] }));
  const stop = best.findIndex((one) => one.speedup < PAYS);
  const at = stop < 0 ? best.at(-1) : best[stop - 1];
  const values = { alpha: two(lab.state.alpha), b: at?.requests, n: at?.requests, gamma: at?.gamma, speedup: at && times(at.speedup), beyond: best[stop]?.requests };
  return lab.say(stop < 0 ? "why.batches_all" : stop === 0 ? "why.batches_never" : "why.batches_until", values);
}

/** @param {Lab} lab */
function how(lab) {
  const { batches, place, cost } = lab.state;
  if (place === "gpu") return lab.say("why.batches_computed");
  if (!batches?.points.length) return "";
  const { context, dtype, device, threads, kind } = batches;
  const where = threads === null ? device : `${device}, ${lab.say("why.threads", { n: threads })}`;
  const drafting = batches.draft ? lab.say("why.batches_draft") : lab.say("why.batches_cost", { cost: two(cost) });
  return `${lab.say("why.batches_measured", { context, dtype, place: where, passes: lab.say(`passes.${kind}`) })} ${drafting}`;
}

/** Milliseconds of every pass. @param {Lab} lab */
function timesTable(lab) {
  const { batches, points } = lab.state.batches;
  const widths = [...new Set(points.filter(({ role }) => role === "target").map(({ width }) => width))].sort((a, b) => a - b);
  const cell = (role, requests, width) => points.find((one) => one.role === role && one.requests === requests && one.width === width);
  const row = (name, role, width) => make("tr", {}, make("th", { scope: "row", text: name }), ...batches.map((requests) => { const one = cell(role, requests, width); return make("td", { text: one ? ms(one.seconds) : "–" }); }));
  const head = make("tr", {}, make("th", { scope: "col", text: "K ╲ B" }), ...batches.map((requests) => make("th", { scope: "col", text: requests })));
  const draft = points.some(({ role }) => role === "draft") ? [row(lab.say("why.column_draft"), "draft", 1)] : [];
  return make("table", { part: "batches-times" }, make("thead", {}, head), make("tbody", {}, ...widths.map((width) => row(width, "target", width)), ...draft));
}
