// The Compare tab: a table of contestants that sorts, a heat map of their speedups, and two rules on the same draws.
//
// The body of a gr.HTML component's js_on_load: `element`, `props` and `watch` are given, `STYLE` (compare.css) and the
// helpers of dom.js are put in front. Every message holds all that its part shows. Model text reaches the page through
// textContent alone.

const host = element.querySelector(".specviz-compare");
const shadow = host.attachShadow({ mode: "open" });

const DASH = "—";
const STRONGEST = 45; // per cent of a heat map cell's hue; more would take the figures' contrast away
const FULL_SCALE = Math.log2(2.5); // the speedup, or slowdown, that has it

// --- small helpers --------------------------------------------------------------------------------------------------

const isNumber = (x) => typeof x === "number";
const times = (x) => (isNumber(x) ? `${x.toFixed(2)}×` : DASH);
const rate = (x) => (isNumber(x) ? x.toFixed(x >= 100 ? 0 : 1) : DASH);
const percent = (x) => (isNumber(x) ? `${Math.round(100 * x)}\u202f%` : DASH);
const decimals = (digits) => (x) => (isNumber(x) ? x.toFixed(digits) : DASH);
const short = (x) => (isNumber(x) ? x.toFixed(2).replace(/^0/, "") : "");
const visible = (text) => text.replace(/^ /, "\u00b7").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
const quoted = (text) => `‹\u2068${text.replace(/^ /, "\u00a0").replaceAll("\n", "⏎").replaceAll("\t", "⇥")}\u2069›`;

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// --- state ------------------------------------------------------------------------------------------------------------

const state = { contest: null, replay: null, sort: null };

host.specviz = {
  get state() { return state.contest?.phase ?? "empty"; },
  get rows() { return state.contest?.rows ?? []; },
  get texts() { return state.contest?.texts ?? null; },
  get replay() { return state.replay; },
};

// --- the table's columns ------------------------------------------------------------------------------------------

const figure = (name) => (row) => row.figures?.[name] ?? null;
const COLUMNS = [
  { key: "drafter", value: (row) => row.drafter, text: (row) => row.drafter, words: true },
  { key: "num_draft_tokens", value: (row) => row.num_draft_tokens, text: (row) => String(row.num_draft_tokens ?? DASH) },
  { key: "branches", value: (row) => row.branches, text: (row) => String(row.branches ?? DASH) },
  { key: "rule", value: (row) => row.rule, text: (row) => row.rule || DASH, words: true },
  { key: "acceptance_rate", hint: true, value: figure("acceptance_rate"), text: (row) => percent(figure("acceptance_rate")(row)) },
  { key: "acceptance_length", hint: true, value: figure("acceptance_length"), text: (row) => decimals(2)(figure("acceptance_length")(row)) },
  { key: "cost_coefficient", hint: true, value: figure("cost_coefficient"), text: (row) => decimals(2)(figure("cost_coefficient")(row)) },
  { key: "tokens_per_second", hint: true, value: figure("tokens_per_second"), text: (row) => rate(figure("tokens_per_second")(row)) },
  { key: "speedup", hint: true, value: figure("speedup_measured"), text: (row) => times(figure("speedup_measured")(row)) },
  { key: "lossless", hint: true, value: (row) => (row.lossless ? 0 : row.figures?.distance ?? 1), text: (row) => lawText(row) },
];

function lawText(row) {
  return row.lossless ? say("compare.lossless") : say("compare.lossy");
}

// --- skeleton ---------------------------------------------------------------------------------------------------------

const ui = {};

function build() {
  ui.empty = make("div", { class: "card empty", part: "empty" },
    make("p", { text: say("compare.empty_compare") }),
    make("p", { text: say("compare.empty_two_rules") }));
  ui.contest = contestSection();
  ui.replay = replaySection();
  ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, ui.empty, ui.contest, ui.replay);
  shadow.append(make("style", { text: STYLE }), ui.view);
}

function progress(name) {
  const text = make("div", { class: "says", role: "status", "aria-live": "polite", part: `${name}-status` });
  const bar = make("i");
  const track = make("div", { class: "track", role: "progressbar", "aria-label": say("compare.share_done"), "aria-valuemin": "0", "aria-valuemax": "100" }, bar);
  const note = make("p", { class: "note hidden", role: "alert", part: `${name}-note` });
  return { text, bar, track, note };
}

function contestSection() {
  ui.contestProgress = progress("contest");
  ui.texts = make("p", { class: "verdict hidden", part: "texts" });
  ui.heads = COLUMNS.map((column) => {
    const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
    const button = make("button", { type: "button", "data-sort": column.key, title: column.hint && say(`compare.hint_${column.key}`), on: { click: () => sortBy(column) } },
      say(`compare.column_${column.key}`), arrow);
    return make("th", { scope: "col", "data-column": column.key, class: column.words ? "words" : "", "aria-sort": "none" }, button);
  });
  ui.body = make("tbody");
  ui.table = make("table", { class: "standings", part: "table", "aria-label": say("compare.contestants") },
    make("thead", {}, make("tr", {}, ...ui.heads)), ui.body);
  ui.map = make("div", { part: "map" });
  const { text, track, note } = ui.contestProgress;
  return make("section", { class: "contest hidden", "aria-label": say("compare.comparison") },
    make("div", { class: "card" }, make("h3", { text: say("compare.measured") }), text, track, note, ui.texts,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("compare.table") }, ui.table)),
    make("div", { class: "card mapcard" }, make("h3", { text: say("compare.map_title") }),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("compare.map") }, ui.map), scale()));
}

function scale() {
  const steps = [0.5, 0.75, 1, 1.5, 2, 2.5].map((speedup) => make("span", { style: tint(speedup), text: `${speedup}×` }));
  return make("div", { class: "scale" }, make("span", { class: "quiet", text: say("compare.scale_slower") }), ...steps, make("span", { class: "quiet", text: say("compare.scale_faster") }),
    make("span", { class: "quiet", text: say("compare.scale_best") }));
}

function replaySection() {
  ui.replayProgress = progress("replay");
  ui.totals = make("div", { part: "totals" });
  ui.differing = make("div", { class: "differing", part: "differing" });
  const { text, track, note } = ui.replayProgress;
  return make("section", { class: "card replay hidden", "aria-label": say("compare.two_rules") },
    make("h3", { text: say("compare.two_rules") }), text, track, note, ui.totals, ui.differing);
}

// --- messages --------------------------------------------------------------------------------------------------------

const handlers = {
  contest(message) {
    state.contest = message;
    open(ui.contest, ui.contestProgress, message.phase, message.text, message.fraction);
    renderTexts();
    renderTable();
    renderMap();
  },
  contest_phase(message) {
    open(ui.contest, ui.contestProgress, "running", message.text, message.fraction);
  },
  contest_error(message) { fail(ui.contest, ui.contestProgress, message.text); },
  replay(message) {
    state.replay = message;
    open(ui.replay, ui.replayProgress, message.phase, message.text, message.fraction);
    renderReplay();
  },
  replay_error(message) { fail(ui.replay, ui.replayProgress, message.text); },
};

function receive() {
  dispatch(props.value, handlers);
}

function open(section, parts, phase, text, fraction) {
  ui.empty.classList.add("hidden");
  section.classList.remove("hidden");
  // What was started last stands first: the other one may be long.
  if (phase === "running" && section.dataset.phase !== "running") ui.view.prepend(section);
  section.dataset.phase = phase;
  parts.note.classList.add("hidden");
  setText(parts.text, text);
  parts.bar.style.width = `${100 * fraction}%`;
  parts.track.setAttribute("aria-valuenow", String(Math.round(100 * fraction)));
  parts.track.classList.toggle("idle", phase !== "running");
}

function fail(section, parts, text) {
  open(section, parts, "failed", "", 0);
  setText(parts.note, text);
  parts.note.classList.remove("hidden");
}

// --- the table -------------------------------------------------------------------------------------------------------

function sortBy(column) {
  const again = state.sort?.column === column;
  state.sort = { column, down: again ? !state.sort.down : !column.words };
  renderTable();
}

/** The rows in the order asked for; what is not known yet comes last either way. */
function sorted(rows) {
  if (!state.sort) return rows;
  const { column, down } = state.sort;
  const known = rows.filter((row) => column.value(row) !== null);
  const unknown = rows.filter((row) => column.value(row) === null);
  const order = (a, b) => (column.words ? a.localeCompare(b) : a - b);
  known.sort((a, b) => (down ? -1 : 1) * order(column.value(a), column.value(b)));
  return [...known, ...unknown];
}

function renderTable() {
  const { rows } = state.contest;
  const shown = COLUMNS.filter((column) => column.key !== "rule" || rows.some((row) => row.rule));
  COLUMNS.forEach((column, i) => {
    const head = ui.heads[i];
    const active = state.sort?.column === column;
    head.classList.toggle("hidden", !shown.includes(column));
    head.setAttribute("aria-sort", active ? (state.sort.down ? "descending" : "ascending") : "none");
    setText(head.querySelector(".arrow"), active ? (state.sort.down ? " ↓" : " ↑") : "");
  });
  ui.body.replaceChildren(...sorted(rows).map((row) => tableRow(row, shown)));
}

function tableRow(row, columns) {
  const cells = columns.map((column) => {
    const cell = make(column.key === "drafter" ? "th" : "td", { scope: column.key === "drafter" ? "row" : null, "data-column": column.key, class: column.words ? "words" : "", text: column.text(row) });
    if (column.key === "drafter" && row.best) cell.prepend(make("b", { class: "star", text: "★ ", title: say("compare.best") }));
    if (row.figures) cell.append(...smallPrint(column.key, row));
    return cell;
  });
  return make("tr", { "data-best": row.best, "data-lossy": !row.lossless, "data-pending": !row.figures }, ...cells);
}

/** Below a figure, the least and the most over the repeats, of which one alone has none; a lossy rule's distance. */
function smallPrint(key, { figures, repeats }) {
  const spread = (format, values) => (repeats > 1 && values ? [make("small", { text: values.map(format).join("–") })] : []);
  if (key === "speedup") return spread((x) => x.toFixed(2), figures.speedup_spread);
  if (key === "tokens_per_second") return spread(rate, figures.spread);
  return key === "lossless" && isNumber(figures.distance) ? [make("small", { text: say("compare.off", { distance: figures.distance.toFixed(2) }) })] : [];
}

// --- the heat map -----------------------------------------------------------------------------------------------------

/** Blue is faster than plain decoding, amber slower; the figure says how much, so no colour has to be told apart. */
function tint(speedup) {
  const distance = Math.log2(speedup) / FULL_SCALE;
  const share = Math.min(1, Math.abs(distance)) * STRONGEST;
  return `background: color-mix(in srgb, var(${distance < 0 ? "--sv-fix" : "--sv-bonus"}) ${share.toFixed(0)}%, var(--sv-card))`;
}

function renderMap() {
  const rows = state.contest.rows.filter((row) => row.num_draft_tokens !== null);
  const gammas = [...new Set(rows.map((row) => row.num_draft_tokens))].sort((a, b) => a - b);
  const names = new Map();
  for (const row of rows) {
    const name = mapName(row, rows);
    if (!names.has(name)) names.set(name, new Map());
    names.get(name).set(row.num_draft_tokens, row);
  }
  const head = make("tr", {}, make("td"), ...gammas.map((gamma) => make("th", { scope: "col", text: say("compare.gamma", { gamma }) })));
  const body = [...names].map(([name, cells]) => make("tr", {}, make("th", { scope: "row", text: name }), ...gammas.map((gamma) => mapCell(cells.get(gamma)))));
  ui.map.replaceChildren(make("table", { class: "map", "aria-label": say("compare.map_title") }, make("thead", {}, head), make("tbody", {}, ...body)));
}

/** The drafter, with branches and rule where rows of the same drafter differ in them. */
function mapName(row, rows) {
  const own = rows.filter((other) => other.drafter === row.drafter);
  const parts = [row.drafter];
  if (new Set(own.map((other) => other.branches)).size > 1) parts.push(row.branches === 1 ? say("compare.chain") : say("compare.branches", { count: row.branches }));
  if (new Set(own.filter((other) => other.branches === row.branches).map((other) => other.rule)).size > 1) parts.push(row.rule);
  return parts.join(", ");
}

function mapCell(row) {
  const speedup = row?.figures?.speedup_measured;
  if (!isNumber(speedup)) return make("td", { class: "unknown", text: row ? DASH : "" });
  return make("td", { style: tint(speedup), "data-best": row.best, text: `${row.best ? "★ " : ""}${times(speedup)}` });
}

// --- the texts at temperature 0 ----------------------------------------------------------------------------------------

function renderTexts() {
  const { texts } = state.contest;
  ui.texts.classList.toggle("hidden", !texts);
  if (!texts) return;
  const partings = texts.partings.map(partingText);
  const same = texts.of - partings.length;
  const summary = partings.length
    ? say("compare.some_same", { n: texts.of, same })
    : say("compare.all_same", { n: texts.of });
  ui.texts.replaceChildren(summary, ...partings.map((text) => make("span", { class: "parting", text })));
}

function partingText({ name, position, plain, speculative, margin, half_precision }) {
  const reason = half_precision ? say("compare.half_precision") : say("compare.full_precision");
  const known = { name, place: position + 1, speculative: quoted(speculative), plain: quoted(plain), reason };
  return isNumber(margin) ? say("compare.parting_margin", { ...known, margin: Number(margin.toPrecision(2)) }) : say("compare.parting", known);
}

// --- two rules on the same draws -------------------------------------------------------------------------------------

const RULES = [say("compare.rule_token"), say("compare.rule_block")];

function renderReplay() {
  const { rounds, drafted, kept, ahead, behind, phase, differing } = state.replay;
  const row = (name, count) => make("tr", {}, make("th", { scope: "row", text: name }), make("td", { text: String(count) }),
    make("td", { text: drafted ? percent(count / drafted) : DASH }), make("td", { text: rounds ? (1 + count / rounds).toFixed(2) : DASH }));
  const table = make("table", { class: "rules", "aria-label": say("compare.kept_table") },
    make("thead", {}, make("tr", {}, ...["", say("compare.kept"), say("compare.of_drafted", { drafted }), say("compare.column_acceptance_length")].map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...RULES.map((name, i) => row(name, kept[i]))));
  ui.totals.replaceChildren(make("div", { class: "scroll" }, table), ...(phase === "running" ? [] : verdict(rounds, kept, ahead, behind).map((text) => make("p", { class: "verdict", text }))));
  ui.differing.replaceChildren(...differing.map(differingRound));
}

function verdict(rounds, kept, ahead, behind) {
  const gain = kept[1] - kept[0];
  const key = gain === 0 ? "compare.verdict_same" : gain > 0 ? "compare.verdict_more" : "compare.verdict_fewer";
  return [
    say(key, { rounds: say("compare.rounds", { n: rounds }), tokens: say("common.tokens", { n: Math.abs(gain) }),
      ahead: say("compare.rounds", { n: ahead }), behind, proof: say("compare.proof") }),
    ahead + behind ? say("compare.same_text_differing") : say("compare.same_text"),
  ];
}

/** One round as a small table: the coins, what each rule holds against them, and what it keeps. */
function differingRound(round) {
  const tokens = round.drafted;
  const line = (name, cells, end) => make("tr", {}, make("th", { scope: "row", text: name }), ...cells, end);
  const judged = (rule, key) => line(RULES[rule], tokens.map((token, i) => judgement(token[key], i, round.kept[rule], rule)), nextCell(round.next[rule]));
  const head = make("tr", {}, make("td", { class: "number", text: say("compare.round", { number: round.index + 1 }) }),
    ...tokens.map((token) => make("th", { scope: "col", dir: "auto", class: "token", text: visible(token.text) })), make("th", { scope: "col", text: say("compare.then") }));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("compare.round", { number: round.index + 1 }) },
    make("table", { class: "round", "data-round": round.index },
      make("thead", {}, head),
      make("tbody", {}, line(say("compare.coin"), tokens.map((token) => make("td", { text: short(token.u) })), make("td")), judged(0, "ratio"), judged(1, "h"))));
}

/** Token by token nothing is looked at after the first refusal; a block is weighed to its end. */
function judgement(threshold, place, kept, rule) {
  const outcome = place < kept ? "accepted" : place === kept || rule === 1 ? "rejected" : "discarded";
  const sign = { accepted: "✓", rejected: "✗", discarded: "┄" }[outcome];
  const name = rule ? "h" : "p/q";
  const said = outcome === "discarded" ? "┄" : `${sign} ${name} ${short(threshold)}`;
  return make("td", { class: outcome, "data-outcome": outcome, "aria-label": say("compare.judged", { outcome: say(`common.${outcome}`), name, value: short(threshold) }), text: said });
}

function nextCell({ text, kind }) {
  return make("td", { class: `token ${kind}`, dir: "auto", "aria-label": say("compare.next", { kind: say(`common.${kind}`), text }), text: `${kind === "bonus" ? "★" : "↻"} ${visible(text)}` });
}

// --- go ------------------------------------------------------------------------------------------------------------------

build();
watch("value", receive);
if (props.value) receive();
