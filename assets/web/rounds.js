// The live view of a run: headline figures, the text with its provenance, every round, and an inspector.
//
// This file is the body of a gr.HTML component's js_on_load: `element`, `props`, `server` and `watch` are given, and
// `STYLE` (rounds.css) and dom.js are put in front. Messages (specviz/views/messages.py) arrive one by one as the component's value
// and carry only what is new; the state lives here. Model text reaches the page through textContent alone, inside a
// shadow root that neither Gradio's re-rendering nor its styles can touch.

const host = element.querySelector(".specviz-rounds");
const shadow = host.attachShadow({ mode: "open" });

const CHUNK = 40; // rounds per block of the list; blocks far from the window hold no rows
const DRAW_EVERY = 80; // ms between two drawings
const ROW_GUESS = 82; // px, for rows that were never laid out
const WIDE = 790; // px of component width from which the inspector stands beside the rounds
const SMALL = 520; // px below which it is a phone
const SYMBOL = { accepted: "✓", rejected: "✗", discarded: "┄", recovered: "↻", bonus: "★", plain: "○" };
const CONTROL = { "\n": "⏎", "\r": "␍", "\t": "⇥" };

// --- small helpers --------------------------------------------------------------------------------------------------

const isPartial = (text) => /^\ufffd*$/.test(text); // bytes that are no whole character

/** A token with its white space made visible, as [text, isMark] parts. */
function visibleParts(text) {
  if (isPartial(text)) return [["part of a character", true]];
  const parts = [];
  for (const char of text) {
    const code = char.codePointAt(0);
    const mark = char === " " ? "·" : CONTROL[char] ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : null);
    const last = parts.at(-1);
    if (last && last[1] === (mark !== null)) last[0] += mark ?? char;
    else parts.push([mark ?? char, mark !== null]);
  }
  return parts;
}

function showToken(node, text) {
  node.replaceChildren(...visibleParts(text).map(([part, mark]) => (mark ? make("i", { text: part }) : part)));
  node.setAttribute("dir", "auto");
  return node;
}

/** ‹ dragon›: the token as prose quotes it; isolated so that right-to-left text cannot turn the sentence around. */
function quoted(text) {
  const shown = isPartial(text) ? "part of a character" : [...text].map((c) => (c === " " ? "\u00a0" : visibleParts(c)[0][0])).join("");
  return `‹\u2068${shown}\u2069›`;
}

/** A probability in a chip: .61, <.01, 1. */
function brief(x) {
  if (x === null || x === undefined) return "–";
  if (x <= 0) return "0";
  if (x >= 1) return "1";
  if (x < 0.005) return "<.01";
  if (x >= 0.995) return ">.99";
  return x.toFixed(2).slice(1);
}

/** A probability in a sentence: two decimals, or two digits where it is small. */
function plainNumber(x, digits = 2) {
  if (x === 0 || x === 1) return String(x);
  if (x < 0.0001) return x.toExponential(digits - 1);
  if (x < 0.1) return String(Number(x.toPrecision(digits)));
  const text = x.toFixed(digits);
  return Number(text) === 1 ? plainNumber(x, digits + 1) : text;
}

/** Two numbers that were compared, with as many digits as it takes to see which is larger. */
function compared(a, b) {
  let digits = 2;
  while (digits < 9 && a !== b && plainNumber(a, digits) === plainNumber(b, digits)) digits += 1;
  return [plainNumber(a, digits), plainNumber(b, digits)];
}

/** "0.31 / 0.42": with enough digits that dividing what is shown gives the quotient that is shown. */
function quotient(p, q, shown) {
  const half = 0.5 * 10 ** -(shown.split(".")[1]?.length ?? 0);
  let digits = 2;
  while (digits < 9 && Math.abs(plainNumber(p, digits) / plainNumber(q, digits) - Number(shown)) > half) digits += 1;
  return `${plainNumber(p, digits)} / ${plainNumber(q, digits)}`;
}

const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

// --- state ------------------------------------------------------------------------------------------------------------

const state = {};

function reset() {
  Object.assign(state, {
    phase: "empty", // empty, waiting, running, finished, error
    status: "No run yet",
    run: null,
    start: {},
    rounds: [], // as the messages carry them; null where one never arrived
    text: "",
    vocabulary: new Map(),
    figures: {},
    note: "",
    asked: new Set(), // gaps the server was asked about, by first missing index
    drawn: 0, // rounds already in the page
    chunks: [],
    spans: [], // per round, the text's spans
    chosen: null, // { round, index }; index is a draft position or "next"
    pinned: false,
    everChosen: false,
  });
}

/** For tests and the console: what the component holds. */
host.specviz = {
  get rounds() { return state.rounds; },
  get text() { return state.text; },
  get prompt() { return state.start.prompt; },
  get figures() { return state.figures; },
  get state() { return state.phase; },
  get chosen() { return state.chosen; },
  get missing() { return state.rounds.flatMap((round, index) => (round ? [] : [index])); },
};

// --- what a round says about its tokens ---------------------------------------------------------------------------

const nextKind = (round) => (round.drafted.length ? round.next.kind : "plain");
const acceptedIndexes = (round) => round.drafted.flatMap((token, i) => (token.outcome === "accepted" ? [i] : []));
const isGreedy = (token) => Boolean(state.start.greedy) && token.u === null;
const isCopy = (token) => token.q_raw === null && token.q === 1;

/** The chip an emitted token belongs to: accepted draft tokens in path order, then the target's own. */
function chipOfEmitted(round, k) {
  const accepted = acceptedIndexes(round);
  return k < accepted.length ? accepted[k] : "next";
}

/** Which row of the target pass judged or drew this token. */
function rowOf(round, index) {
  const accepted = acceptedIndexes(round);
  const parent = index === "next" ? (accepted.at(-1) ?? -1) : round.drafted[index].parent;
  return round.top[parent + 1] ?? { p: [] };
}

/** Position among the emitted tokens, or -1: not emitted (refused, discarded, or cut off by the stop). */
function emittedPosition(round, index) {
  const accepted = acceptedIndexes(round);
  const position = index === "next" ? accepted.length : accepted.indexOf(index);
  return position < round.emitted.length ? position : -1;
}

function wasDropped(round, index) {
  const kept = index === "next" || round.drafted[index].outcome === "accepted";
  return kept && emittedPosition(round, index) < 0;
}

function tokenText(id) {
  return state.vocabulary.get(id) ?? `#${id}`;
}

// --- the page's skeleton ---------------------------------------------------------------------------------------------

const FIGURES = [
  ["acceptance_length", "tokens per target pass", "per pass", (x) => x.toFixed(2)],
  ["acceptance_rate", "of judged draft tokens accepted", "accepted", (x) => `${Math.round(100 * x)}\u202f%`],
  ["speedup", "measured against plain decoding", "vs plain", (x) => `${x.toFixed(2)}×`],
  ["tokens_per_second", "tokens per second", "tokens/s", (x) => (x >= 100 ? x.toFixed(0) : x.toFixed(1))],
];

const ui = {};

function build() {
  ui.figures = {};
  const figures = make("div", { class: "figures", part: "figures", role: "group", "aria-label": "Headline figures" });
  for (const [name, long, short] of FIGURES) {
    ui.figures[name] = make("b", { "data-figure": name, text: "—" });
    const label = [make("span", { class: "long", text: long }), make("span", { class: "brief", text: short })];
    figures.append(make("div", { class: "figure" }, ui.figures[name], ...label));
  }
  ui.view = make("div", { class: "view", part: "view", "data-state": "empty", "data-layout": "narrow" }, figures);
  ui.view.append(make("div", { class: "frame" }, make("div", { class: "main" }, textCard(), roundsCard()), inspectorCard()));
  shadow.append(make("style", { text: STYLE }), ui.view);
}

function textCard() {
  ui.status = make("span", { class: "status", role: "status", "aria-live": "polite", part: "status" });
  ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
  ui.prompt = make("span", { class: "prompt", part: "prompt", dir: "auto" });
  ui.caret = make("span", { class: "caret", "aria-hidden": "true" });
  ui.paper = make("div", { class: "paper", part: "paper" });
  ui.textEmpty = make("div", { class: "empty" }, make("p", {
    text: "The text will grow here, token by token, each one tinted by where it came from.",
  }));
  ui.text = make("div", { class: "text", part: "text", tabindex: "0", role: "region", "aria-label": "Prompt and generated text",
    on: { click: onTextClick, pointermove: onPointer } },
    ui.textEmpty, ui.paper);
  ui.followText = follower(ui.text);
  const head = make("div", { class: "head" }, make("h3", { text: "Text" }), ui.status);
  return make("div", { class: "card", part: "text-card" }, head, ui.note, ui.text, legend());
}

function legend() {
  const entry = (kind, word, rest) =>
    make("span", {}, `${SYMBOL[kind]} `, make("b", { class: kind, text: word }), rest ? ` ${rest}` : "");
  return make("div", { class: "legend", part: "legend" },
    entry("accepted", "accepted", "from the draft"), entry("recovered", "recovered", "by the target"),
    entry("bonus", "bonus", "of a clean round"), entry("rejected", "rejected"),
    make("span", { text: "┄ discarded" }), make("span", { text: "○ plain step" }));
}

function roundsCard() {
  ui.roundsEmpty = make("div", { class: "empty" },
    make("p", { text: "Every row will be one pass of the target: the draft tokens it judged, the coin each one needed, and the token it supplied itself." }),
    make("p", { text: "Press the button to start. Point at a chip, tap it, or reach it with Tab and the arrow keys to see its numbers." }));
  ui.list = make("div", { class: "list", role: "list", "aria-label": "Rounds" });
  ui.rounds = make("div", { class: "rounds", part: "rounds", role: "region", "aria-label": "Rounds, newest last",
    on: { click: onChipClick, pointermove: onPointer, focusin: onFocus, keydown: onKey } },
    ui.roundsEmpty, ui.list);
  ui.followRounds = follower(ui.rounds, (following) => ui.newest.classList.toggle("hidden", following));
  ui.newest = make("button", { class: "newest hidden", part: "newest", type: "button", text: "Jump to newest ↓",
    on: { click: () => ui.followRounds.jump() } });
  ui.watcher = new IntersectionObserver(onChunksMoved, { root: ui.rounds, rootMargin: "700px 0px" });
  ui.head = make("h3", { text: "Rounds, newest last. One row is one pass of the target." });
  ui.meta = make("span", { class: "quiet meta", part: "meta" });
  return make("div", { class: "card", part: "rounds-card" }, make("div", { class: "head" }, ui.head, ui.meta),
    make("div", { class: "scroller" }, ui.rounds, ui.newest));
}

function inspectorCard() {
  ui.title = make("h3", { part: "inspector-title" });
  ui.body = make("div", { part: "inspector-body" });
  const close = make("button", { class: "close", type: "button", "aria-label": "Close the inspector", text: "×",
    on: { click: () => letGo(true) } });
  ui.inspector = make("aside", { class: "card inspector", part: "inspector", "aria-label": "Inspector" },
    make("div", { class: "title" }, ui.title, close), ui.body);
  ui.inspector.addEventListener("keydown", (event) => event.key === "Escape" && letGo(true));
  return ui.inspector;
}

/** Keeps a scroll area at its end as it grows, until its reader scrolls up; `jump` goes back to following. */
function follower(box, onChange = () => {}) {
  let following = true;
  let last = 0;
  const set = (value) => {
    if (value !== following) onChange((following = value));
  };
  box.addEventListener("scroll", () => {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    if (atEnd) set(true);
    else if (box.scrollTop < last - 2) set(false);
    last = box.scrollTop;
  }, { passive: true });
  const toEnd = () => {
    box.scrollTop = box.scrollHeight;
    last = box.scrollTop;
  };
  return {
    settle: () => following && toEnd(),
    hold: () => set(false),
    jump: () => { set(true); toEnd(); },
    get on() { return following; },
  };
}

// --- messages --------------------------------------------------------------------------------------------------------

const handlers = {
  clear() {
    reset();
    redraw();
  },
  waiting(message) {
    state.phase = "waiting";
    state.status = message.text;
  },
  error(message) {
    state.phase = "error";
    state.status = "Failed";
    state.note = message.text;
  },
  start(message) {
    // A start repeated for the run on the screen (a resend) only fills in what was missing.
    if (message.run !== state.run) begin(message.run);
    state.start = message;
    ui.prompt.textContent = message.prompt;
  },
  rounds(message) {
    if (message.run !== state.run) begin(message.run);
    take(message);
  },
  end(message) {
    if (message.run !== state.run) begin(message.run);
    leaveHoles(message.total);
    setFigures(message.figures);
    state.phase = "finished";
    state.status = [message.reason, message.note].filter(Boolean).join(" ");
  },
};

function receive(text) {
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    return; // an empty or foreign value: nothing to show
  }
  if (!message || !Object.hasOwn(handlers, message.kind)) return;
  handlers[message.kind](message);
  if (message.charts) window.dispatchEvent(new CustomEvent("specviz:charts", { detail: message.charts }));
  schedule();
}

/** On a phone the controls fill the screen: a run that starts below it is brought into view. */
function comeIntoView() {
  if (host.getBoundingClientRect().top < 0.75 * window.innerHeight) return;
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  host.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
}

function begin(run) {
  reset();
  comeIntoView();
  state.run = run;
  state.phase = "running";
  state.status = "Running";
  redraw();
}

/** Adds the rounds of a message; fills holes when it brings rounds that were missing. */
function take(message) {
  for (const [id, text] of Object.entries(message.vocabulary ?? {})) state.vocabulary.set(Number(id), text);
  setFigures(message.figures);
  if (message.first === null) return;
  leaveHoles(message.first);
  let filled = false;
  message.rounds.forEach((round, i) => {
    const index = message.first + i;
    learn(round);
    if (index === state.rounds.length) state.rounds.push(round);
    else if (!state.rounds[index]) filled = Boolean((state.rounds[index] = round));
    else return;
    if (!filled) state.text += round.pieces.join("");
  });
  if (filled) refill();
}

function learn(round) {
  for (const token of round.drafted) state.vocabulary.set(token.id, token.text);
  state.vocabulary.set(round.next.id, round.next.text);
}

function setFigures(figures) {
  if (figures) state.figures = { ...state.figures, ...figures };
}

/** Rounds before `count` that never arrived become holes: seen by the reader, and asked for once. */
function leaveHoles(count) {
  const first = state.rounds.length;
  if (first >= count) return;
  while (state.rounds.length < count) state.rounds.push(null);
  if (state.asked.has(first) || typeof server?.missing_rounds !== "function") return;
  state.asked.add(first);
  const run = state.run;
  server.missing_rounds({ run, first, count }).then(
    (messages) => run === state.run && (messages ?? []).forEach(receive),
    () => {}, // the hole stays on the screen, which is the truth
  );
}

/** After holes were filled: text and list are drawn anew from the state. */
function refill() {
  state.text = state.rounds.map((round) => (round ? round.pieces.join("") : "")).join("");
  redraw();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

let scheduled = false;
let lastDraw = 0;

/** Draws soon, at most once per DRAW_EVERY however many messages come in: the models want these processors too. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  const wait = Math.max(0, lastDraw + DRAW_EVERY - performance.now());
  setTimeout(() => requestAnimationFrame(() => {
    scheduled = false;
    lastDraw = performance.now();
    draw();
  }), wait);
}

/** Empties text and list; the next frame draws the state from its beginning. */
function redraw() {
  ui.watcher.disconnect();
  ui.list.replaceChildren();
  ui.prompt.textContent = state.start.prompt ?? "";
  ui.paper.replaceChildren(make("div", { class: "lines" }, ui.prompt, ui.caret));
  Object.assign(state, { drawn: 0, chunks: [], spans: [] });
  ui.followText.jump();
  ui.followRounds.jump();
  renderInspector();
  schedule();
}

function draw() {
  if (ui.view.dataset.state !== state.phase) ui.view.dataset.state = state.phase;
  setText(ui.status, state.phase === "running" && !state.rounds.length ? "Reading the prompt" : state.status);
  setText(ui.meta, metaLine());
  drawNote();
  drawFigures();
  const some = state.run !== null;
  ui.textEmpty.classList.toggle("hidden", some);
  ui.roundsEmpty.classList.toggle("hidden", state.rounds.length > 0);
  if (state.drawn < state.rounds.length) appendRounds();
  if (state.phase === "finished" && !state.everChosen && ui.view.dataset.layout === "wide") chooseSomething();
  ui.followText.settle();
  ui.followRounds.settle();
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function metaLine() {
  if (!state.run) return "";
  const { drafter, num_draft_tokens: gamma, settings, greedy } = state.start;
  const parts = drafter ? [`${drafter}, γ = ${gamma}`] : ["plain decoding"];
  parts.push(settings || (greedy ? "greedy" : "sampled"));
  if (state.figures.tokens) parts.push(`${plural(state.figures.tokens, "token")} in ${plural(state.figures.target_passes, "pass", "passes")}`);
  return parts.join(" · ");
}

function drawNote() {
  const holes = host.specviz.missing.length;
  const hole = holes ? `${plural(holes, "round")} did not reach this page; the figures and the run itself are complete.` : "";
  setText(ui.note, [state.note, hole].filter(Boolean).join(" "));
  ui.note.classList.toggle("hidden", !state.note && !hole);
}

function drawFigures() {
  for (const [name, , , format] of FIGURES) {
    const value = state.figures[name];
    setText(ui.figures[name], typeof value === "number" ? format(value) : "—");
  }
}

function appendRounds() {
  const newestChunk = Math.floor((state.rounds.length - 1) / CHUNK);
  for (let index = state.drawn; index < state.rounds.length; index += 1) {
    state.spans[index] = textSpans(index);
    state.spans[index].forEach(writeToken);
    const chunk = chunkOf(index);
    if (Math.floor(index / CHUNK) === newestChunk && !chunk.built) fill(chunk, index);
    if (chunk.built) chunk.box.append(roundRow(index));
    else chunk.box.style.height = `${(index - chunk.first + 1) * ROW_GUESS}px`;
  }
  state.drawn = state.rounds.length;
  ensureTabStop();
}

/**
 * Appends a token to the text. A line break at a token's end closes its block: it looks the same, and the browser lays
 * out one block for each new token instead of the whole text.
 */
function writeToken(span) {
  ui.caret.before(span);
  if (span.textContent.endsWith("\n")) ui.paper.append(make("div", { class: "lines" }, ui.caret));
}

function textSpans(index) {
  const round = state.rounds[index];
  if (!round) return [make("span", { class: "missing", text: " […] " })];
  return round.pieces.map((piece, k) => {
    const chip = chipOfEmitted(round, k);
    const kind = chip === "next" ? nextKind(round) : "accepted";
    return make("span", { class: `t ${kind}`, "data-round": index, "data-token": k, "data-kind": kind, text: piece });
  });
}

// --- the list: blocks of rows, filled only near the window ----------------------------------------------------------

function chunkOf(index) {
  const number = Math.floor(index / CHUNK);
  while (state.chunks.length <= number) {
    const chunk = { first: state.chunks.length * CHUNK, built: false, box: make("div", { class: "chunk", role: "presentation" }) };
    chunk.box.chunk = chunk;
    state.chunks.push(chunk);
    ui.list.append(chunk.box);
    ui.watcher.observe(chunk.box);
  }
  return state.chunks[number];
}

/** Builds a block's rows, up to (not including) round `end`. */
function fill(chunk, end = Math.min(chunk.first + CHUNK, state.drawn)) {
  const rows = [];
  for (let index = chunk.first; index < end; index += 1) rows.push(roundRow(index));
  chunk.box.replaceChildren(...rows);
  chunk.box.style.height = "";
  chunk.built = true;
}

function onChunksMoved(entries) {
  for (const entry of entries) {
    const chunk = entry.target.chunk;
    const newest = chunk === state.chunks.at(-1);
    if (entry.isIntersecting && !chunk.built) fill(chunk);
    else if (!entry.isIntersecting && chunk.built && !newest && !chunk.box.contains(shadow.activeElement)) {
      chunk.box.style.height = `${entry.boundingClientRect.height}px`; // keeps its place, holds no rows
      chunk.box.replaceChildren();
      chunk.built = false;
    }
  }
  ensureTabStop();
}

function roundRow(index) {
  const round = state.rounds[index];
  if (!round) return make("div", { class: "hole", role: "listitem", "data-missing": index, text: `Round ${index + 1} did not reach this page.` });
  const chips = make("div", { class: "chips" });
  round.drafted.forEach((token, i) => chips.append(draftChip(index, i, round)));
  const arrow = make("span", { class: "arrow", "aria-hidden": "true", text: "→" });
  chips.append(round.drafted.length ? make("span", { class: "ending" }, arrow, nextChip(index, round)) : nextChip(index, round));
  return make("div", { class: "round", part: "round", role: "listitem", "data-round": index },
    make("div", { class: "n", text: String(index + 1) }), chips, sumCell(round));
}

function sumCell(round) {
  const judged = round.drafted.filter((token) => token.outcome !== "discarded").length;
  const accepted = acceptedIndexes(round).length;
  const lines = [make("b", { text: plural(round.emitted.length, "token") })];
  if (!round.drafted.length) lines.push("plain step");
  else lines.push(`${accepted} of ${judged}${judged < round.drafted.length ? " judged" : ""}`);
  if (round.dropped) lines.push(make("span", { class: "cut", text: `✂ ${round.dropped} cut off`, title: "Decided, then cut off because the run stopped" }));
  return make("div", { class: "sum" }, ...lines);
}

function chip(index, position, kind, text, lines, label, dropped) {
  const button = make("button", { type: "button", class: `chip ${kind}`, part: "chip", tabindex: "-1", "aria-label": label,
    "data-round": index, "data-index": position, "data-outcome": position === "next" ? null : kind,
    "data-kind": position === "next" ? kind : null, "data-dropped": dropped });
  button.append(showToken(make("span", { class: "w" }), text), ...lines);
  if (state.chosen?.round === index && state.chosen.index === position) markChosen(button);
  return button;
}

function draftChip(index, i, round) {
  const token = round.drafted[i];
  const greedy = isGreedy(token);
  const lines = [];
  if (token.outcome === "discarded") lines.push(line(`┄ discarded`));
  else if (greedy) {
    lines.push(line(token.outcome === "accepted" ? "✓ match" : "✗ no match"));
    lines.push(line(`raw ${token.q_raw === null ? "" : `q ${brief(token.q_raw)} `}p ${brief(token.p_raw)}`));
  } else lines.push(line(`${SYMBOL[token.outcome]} q ${brief(token.q)} p ${brief(token.p)}`), coinBar(token));
  return chip(index, i, token.outcome, token.text, lines, chipLabel(round, token, greedy), wasDropped(round, i));
}

const line = (text) => make("span", { class: "m", text });

function coinBar(token) {
  const bar = make("span", { class: "coin", "aria-hidden": "true" });
  const pass = make("i");
  pass.style.width = `${100 * token.accept_prob}%`;
  bar.append(pass);
  if (token.u !== null) {
    const tick = make("s");
    tick.style.left = `${100 * token.u}%`;
    bar.append(tick);
  }
  return bar;
}

function chipLabel(round, token, greedy) {
  const name = quoted(token.text);
  if (token.outcome === "discarded") return `${name}, discarded, never judged`;
  if (greedy) return `${name}, ${token.outcome}, ${token.outcome === "accepted" ? "matches" : "is not"} the target's choice`;
  return `${name}, ${token.outcome}, q ${plainNumber(token.q)}, p ${plainNumber(token.p)}, coin ${plainNumber(token.u)} against ${plainNumber(token.accept_prob)}`;
}

function nextChip(index, round) {
  const { next } = round;
  const kind = nextKind(round);
  const greedy = next.u === null;
  const raw = greedy ? (rowOf(round, "next").p_raw ?? []).find(([id]) => id === next.id)?.[1] : undefined;
  const lines = [];
  if (!greedy) lines.push(line(`${SYMBOL[kind]} ${kind === "recovered" ? "residual" : `${kind} p`} ${brief(next.prob)}`));
  else {
    lines.push(line(`${SYMBOL[kind]} ${kind === "recovered" ? "target's choice" : kind}`));
    if (raw !== undefined) lines.push(line(`raw p ${brief(raw)}`));
  }
  const label = `${quoted(next.text)}, ${kind === "plain" ? "plain step" : kind}, probability ${plainNumber(raw ?? next.prob)}`;
  return chip(index, "next", kind, next.text, lines, label, wasDropped(round, "next"));
}

// --- choosing a token ------------------------------------------------------------------------------------------------

function chipAt(round, index) {
  return ui.list.querySelector(`.chip[data-round="${round}"][data-index="${index}"]`);
}

const place = (node) => ({
  round: Number(node.dataset.round),
  index: node.dataset.index === "next" ? "next" : Number(node.dataset.index),
});

function placeOfWord(span) {
  const round = Number(span.dataset.round);
  return { round, index: chipOfEmitted(state.rounds[round], Number(span.dataset.token)) };
}

function markChosen(button) {
  button.classList.add("chosen");
  button.setAttribute("aria-pressed", "true");
}

function choose(spot, { pin = false, reveal = false } = {}) {
  const same = state.chosen && state.chosen.round === spot.round && state.chosen.index === spot.index;
  state.pinned = pin;
  state.everChosen = true;
  if (!same) {
    clearMarks();
    state.chosen = spot;
  }
  if (reveal) revealRound(spot.round);
  const button = chipAt(spot.round, spot.index);
  if (button) markChosen(button);
  const position = emittedPosition(state.rounds[spot.round], spot.index);
  if (position >= 0) state.spans[spot.round]?.[position]?.classList.add("chosen");
  ui.inspector.toggleAttribute("data-open", pin);
  renderInspector();
  if (pin && button && ui.view.dataset.layout === "narrow") uncover(button);
}

/** The sheet of the narrow layout must not lie over the chip it speaks about. */
function uncover(button) {
  const hidden = button.getBoundingClientRect().bottom + 12 - ui.inspector.getBoundingClientRect().top;
  if (hidden > 0) window.scrollBy({ top: hidden });
}

function clearMarks() {
  for (const node of shadow.querySelectorAll(".chosen")) {
    node.classList.remove("chosen");
    node.removeAttribute("aria-pressed");
  }
}

/** Unpins; in the narrow layout this closes the sheet. Focus goes back to the chip it came from. */
function letGo(refocus) {
  const { chosen } = state;
  state.pinned = false;
  ui.inspector.removeAttribute("data-open");
  if (refocus && chosen) chipAt(chosen.round, chosen.index)?.focus({ preventScroll: true });
  renderInspector();
}

/** When a run ends and nobody has pointed at anything: the newest refusal is the most telling token to show. */
function chooseSomething() {
  for (let r = state.rounds.length - 1; r >= Math.max(0, state.rounds.length - 60); r -= 1) {
    const i = state.rounds[r]?.drafted.findIndex((token) => token.outcome === "rejected") ?? -1;
    if (i >= 0) return choose({ round: r, index: i });
  }
  if (state.rounds.at(-1)) choose({ round: state.rounds.length - 1, index: "next" });
}

function revealRound(index) {
  const chunk = chunkOf(index);
  // The blocks beside it too: filled only when they come near, they would grow and push the round out of sight.
  for (const near of [chunk.box.previousSibling?.chunk, chunk, chunk.box.nextSibling?.chunk]) if (near && !near.built) fill(near);
  const row = chunk.box.querySelector(`.round[data-round="${index}"]`);
  const box = ui.rounds.getBoundingClientRect();
  const at = row.getBoundingClientRect();
  if (at.top >= box.top && at.bottom <= box.bottom) return;
  ui.followRounds.hold();
  ui.rounds.scrollTop += at.top - box.top - (box.height - at.height) / 2;
}

// --- events -----------------------------------------------------------------------------------------------------------

function onChipClick(event) {
  const button = event.target.closest(".chip");
  if (!button) return;
  const spot = place(button);
  const again = state.pinned && state.chosen.round === spot.round && state.chosen.index === spot.index;
  if (again) letGo(false);
  else choose(spot, { pin: true });
}

function onTextClick(event) {
  const span = event.target.closest(".t");
  if (span) choose(placeOfWord(span), { pin: true, reveal: true });
}

/**
 * Hovering previews, in the wide layout only, and the last preview stays: a reader moves the mouse away to read it.
 * A list that scrolls under a resting mouse is not hovering.
 */
function onPointer(event) {
  if (event.pointerType !== "mouse" || state.pinned || ui.view.dataset.layout !== "wide") return;
  if (!event.movementX && !event.movementY) return;
  const target = event.target.closest(".chip, .t");
  if (!target) return;
  const spot = target.matches(".chip") ? place(target) : placeOfWord(target);
  if (state.chosen?.round !== spot.round || state.chosen.index !== spot.index) choose(spot);
}

function onFocus(event) {
  const button = event.target.closest(".chip");
  if (!button) return;
  setTabStop(button);
  if (!state.pinned && ui.view.dataset.layout === "wide" && button.matches(":focus-visible")) choose(place(button));
}

function onKey(event) {
  if (event.key === "Escape") return letGo(true);
  const button = event.target.closest(".chip");
  if (!button) return;
  const { round, index } = place(button);
  const at = index === "next" ? state.rounds[round].drafted.length : index;
  const moves = {
    ArrowRight: [round, at + 1], ArrowLeft: [round, at - 1], ArrowDown: [round + 1, at], ArrowUp: [round - 1, at],
    Home: [0, 0], End: [state.rounds.length - 1, 0],
  };
  if (!Object.hasOwn(moves, event.key)) return; // Enter and Space click the button
  event.preventDefault();
  focusChip(...moves[event.key]);
}

/** Focuses chip `at` of a round; past either end of a row it steps into the neighbouring round. */
function focusChip(round, at) {
  const sideways = at < 0 ? -1 : state.rounds[round] && at > state.rounds[round].drafted.length ? 1 : 0;
  const vertical = shadow.activeElement?.dataset.round !== String(round);
  if (sideways && !vertical) {
    round += sideways;
    at = sideways < 0 ? Infinity : 0;
  }
  const target = state.rounds[round];
  if (!target) return;
  const position = Math.min(Math.max(at, 0), target.drafted.length);
  const chunk = chunkOf(round);
  if (!chunk.built) fill(chunk);
  if (round < state.rounds.length - 1) ui.followRounds.hold();
  chipAt(round, position === target.drafted.length ? "next" : position)?.focus();
}

function setTabStop(button) {
  if (ui.tabStop) ui.tabStop.tabIndex = -1;
  ui.tabStop = button;
  button.tabIndex = 0;
}

/** Tab enters the list at one chip: the one last focused, else the newest. */
function ensureTabStop() {
  if (ui.tabStop?.isConnected && (ui.tabStop === shadow.activeElement || ui.tabStop.matches(".chosen"))) return;
  const rows = ui.list.querySelectorAll(".round");
  const newest = rows[rows.length - 1]?.querySelector(".chip");
  if (newest) setTabStop(newest);
}

// --- the inspector ---------------------------------------------------------------------------------------------------

function renderInspector() {
  const { chosen } = state;
  const round = chosen && state.rounds[chosen.round];
  if (!round) {
    ui.title.textContent = "Inspector";
    ui.body.replaceChildren(make("p", { class: "say",
      text: "Point at a token to see why it passed or not: its two probabilities, the coin, and what else the models had in mind." }));
    return;
  }
  const { index } = chosen;
  const token = index === "next" ? round.next : round.drafted[index];
  ui.title.textContent = `Round ${chosen.round + 1}, ${tokenName(round, index)}: ${quoted(token.text)}`;
  const parts = [make("p", { class: "say", part: "say", text: sentence(round, index) })];
  if (index !== "next" && token.u !== null) parts.push(coinLine(token));
  parts.push(...distribution(round, index), ...residual(round, index));
  if (state.pinned && ui.view.dataset.layout === "wide") parts.push(make("p", { class: "raw", text: "Pinned. Esc, or the same chip again, lets go." }));
  ui.body.replaceChildren(...parts);
}

function tokenName(round, index) {
  if (index !== "next") return `draft token ${index + 1}`;
  return { recovered: "recovered token", bonus: "bonus token", plain: "plain step" }[nextKind(round)];
}

function sentence(round, index) {
  const say = index === "next" ? sayNext(round) : sayDrafted(round, round.drafted[index]);
  const whole = wasDropped(round, index) ? `${say} It was cut off afterwards, because the run stopped before it.` : say;
  return whole.replace(/ ([=<]) /g, "\u00a0$1\u00a0"); // an equation stays on one line
}

function sayDrafted(round, token) {
  const name = quoted(token.text);
  if (token.outcome === "discarded") return sayDiscarded(round, token);
  if (isGreedy(token)) return sayGreedy(round, token);
  const opening = isCopy(token)
    ? `${name} was copied from the text so far; a copy is certain to be proposed, so q = 1.`
    : token.q === 1
      ? `The draft was certain to say ${name}: q = 1.`
      : `The draft said ${name} with q = ${plainNumber(token.q)}.`;
  return `${opening} ${sayCoin(token)} ${sayAfter(round, token)}`.trim();
}

function sayCoin(token) {
  if (token.p === 0) return "The target gives it p = 0, so no coin can pass.";
  const [u, threshold] = compared(token.u, token.accept_prob);
  const verdict = token.outcome === "accepted" ? "accepted" : "refused";
  if (token.accept_prob >= 1) {
    return `The target likes it at least as much, p = ${plainNumber(token.p)}, so every coin passes (it fell on u = ${u}): ${verdict}.`;
  }
  const ratio = token.q === 1 ? threshold : `${quotient(token.p, token.q, threshold)} = ${threshold}`;
  return `The target gives it p = ${plainNumber(token.p)}, so it passes if u < ${ratio}. The coin fell on u = ${u}: ${verdict}.`;
}

function sayAfter(round, token) {
  if (token.outcome !== "rejected") return "";
  return `From the residual the target took ${quoted(round.next.text)}.`;
}

function sayDiscarded(round, token) {
  const refused = round.drafted.find((other) => other.outcome === "rejected");
  const opening = isCopy(token) ? `${quoted(token.text)} was copied from the text so far.`
    : state.start.greedy ? `The draft went on with ${quoted(token.text)}.`
    : `The draft said ${quoted(token.text)} with q = ${plainNumber(token.q)}.`;
  const why = refused
    ? `It was never judged: ${quoted(refused.text)} before it was refused, and what was drafted after a refusal is thrown away.`
    : "It was never judged: the accepted path went another way.";
  return `${opening} ${why}`;
}

function sayGreedy(round, token) {
  const name = quoted(token.text);
  const opening = isCopy(token) ? `${name} was copied from the text so far.` : `The draft's choice was ${name}.`;
  if (token.outcome === "accepted") return `${opening} It is also the target's likeliest token here: a match, accepted. Greedy decoding flips no coin.`;
  return `${opening} The target's likeliest token here is ${quoted(round.next.text)}. They differ, so the draft token is refused and the target's own stands in its place.`;
}

function sayNext(round) {
  const { next } = round;
  const name = quoted(next.text);
  const kind = nextKind(round);
  const greedy = next.u === null;
  const draw = greedy ? "" : `The draw fell on u = ${plainNumber(next.u)} and gave ${name}`;
  if (kind === "plain") {
    const opening = "Nothing was drafted in this round, so the target took an ordinary step.";
    return greedy ? `${opening} Its likeliest token is ${name}.` : `${opening} ${draw}, p = ${plainNumber(next.prob)}.`;
  }
  if (kind === "bonus") {
    const opening = `All ${round.drafted.length > 1 ? `${acceptedIndexes(round).length} draft tokens were` : "that was drafted was"} accepted. The same pass already holds the target's distribution after the last of them, so one more token comes free.`;
    return greedy ? `${opening} The likeliest is ${name}.` : `${opening} ${draw}, p = ${plainNumber(next.prob)}.`;
  }
  const refused = round.drafted.find((token) => token.outcome === "rejected");
  const opening = refused ? `${quoted(refused.text)} was refused` : "No draft token was left standing";
  if (greedy) return `${opening}, so the target's own likeliest token, ${name}, takes its place.`;
  const residual = rowOf(round, "next").residual ?? [];
  if (!residual.length) return `${opening}, and the target drew again. ${draw}, probability ${plainNumber(next.prob)}.`;
  return `${opening}, so the target drew from the residual: max(0, p − q), scaled to sum to 1. ${draw}, which has probability ${plainNumber(next.prob)} there.`;
}

/** The unit interval: below min(1, p/q) the coin passes. */
function coinLine(token) {
  const [u, threshold] = compared(token.u, token.accept_prob);
  const box = make("div", { class: `line ${token.outcome}`, role: "img", "aria-label": `Coin ${u}; it passes below ${threshold}` });
  const pass = make("div", { class: "pass" });
  pass.style.width = `${100 * token.accept_prob}%`;
  const tick = make("div", { class: "u" });
  tick.style.left = `${100 * token.u}%`;
  box.append(make("div", { class: "fail" }), pass, tick, marker(token.accept_prob, threshold, "below"), marker(token.u, `u = ${u}`, "above"));
  return box;
}

function marker(at, text, side) {
  const node = make("span", { class: `mark ${side}`, text });
  node.style.left = `${100 * at}%`;
  // Slides from left-aligned at 0 to right-aligned at 1, so it never leaves the line.
  node.style.transform = `translateX(${-100 * at}%)`;
  return node;
}

const SHOWN = 6;

function distribution(round, index) {
  const row = rowOf(round, index);
  const token = index === "next" ? round.next : round.drafted[index];
  // A greedy p is 0 or 1 and says nothing; the models' own probabilities do.
  const greedy = Boolean(state.start.greedy);
  const p = new Map(greedy && row.p_raw?.length ? row.p_raw : row.p);
  const q = new Map(greedy ? (row.q_raw ?? []) : (row.q ?? []));
  if (index !== "next" && !greedy && token.outcome !== "discarded") {
    p.set(token.id, token.p);
    q.set(token.id, token.q);
  }
  const ids = [...new Set([...p.keys(), ...q.keys()])].sort((a, b) => (p.get(b) ?? 0) - (p.get(a) ?? 0));
  const shown = ids.slice(0, SHOWN);
  if (!shown.includes(token.id) && (p.has(token.id) || q.has(token.id))) shown[Math.max(0, Math.min(SHOWN, shown.length) - 1)] = token.id;
  if (!shown.length) return [];
  const bars = make("div", { class: q.size ? "bars" : "bars single", role: "img", part: "distribution",
    "aria-label": shown.map((id) => `${quoted(tokenText(id))}: p ${brief(p.get(id) ?? 0)}${q.size ? `, q ${brief(q.get(id) ?? 0)}` : ""}`).join("; ") });
  bars.append(make("span"), make("span"), make("span", { class: "h p", text: "p" }));
  if (q.size) bars.append(make("span", { class: "h q", text: "q" }));
  const rest = (map) => Math.max(0, 1 - shown.reduce((sum, id) => sum + (map.get(id) ?? 0), 0));
  const scale = Math.max(rest(p), q.size ? rest(q) : 0, ...shown.map((id) => Math.max(p.get(id) ?? 0, q.get(id) ?? 0)));
  for (const id of shown) {
    const name = showToken(make("span", { class: id === token.id ? "name on" : "name" }), tokenText(id));
    barRow(bars, name, p.get(id) ?? 0, q.size ? (q.get(id) ?? 0) : undefined, scale);
  }
  barRow(bars, make("span", { class: "name rest", text: "rest" }), rest(p), q.size ? rest(q) : undefined, scale);
  const heading = greedy ? "The models' own probabilities here (temperature 1)" : q.size ? "Both distributions here" : "The target's distribution here";
  const legend = make("div", { class: "legend" }, make("span", {}, make("b", { class: "target", text: "p" }), " target"));
  if (q.size) legend.append(make("span", {}, make("b", { class: "draft", text: "q" }), isCopy(token) ? " copy" : " draft"));
  return [make("h4", { text: heading }), bars, legend, ...rawLine(token, index, greedy)];
}

function barRow(bars, name, p, q, scale) {
  const bar = make("span", { class: "bar" });
  const add = (kind, value) => {
    if (!value) return;
    const stripe = make("i", { class: kind });
    stripe.style.width = `${(100 * value) / scale}%`;
    bar.append(stripe);
  };
  add(q === undefined ? "p wide" : "p", p);
  if (q !== undefined) add("q", q);
  bars.append(name, bar, make("span", { class: "v p", text: brief(p) }));
  if (q !== undefined) bars.append(make("span", { class: "v q", text: brief(q) }));
}

/** The models' own softmax, where temperature or filters changed it. */
function rawLine(token, index, greedy) {
  if (index === "next") return [];
  const q = token.q_raw === null ? "" : `, the draft q = ${plainNumber(token.q_raw)}`;
  const changed = Math.abs(token.p_raw - token.p) > 0.005 || (token.q_raw !== null && Math.abs(token.q_raw - token.q) > 0.005);
  if (!changed) return [];
  const when = greedy ? "Before the choice, at temperature 1" : "Before temperature and filters";
  return [make("p", { class: "raw", text: `${when}: the target gave ${quoted(token.text)} p = ${plainNumber(token.p_raw)}${q}.` })];
}

function residual(round, index) {
  if (state.start.greedy) return [];
  if (index !== "next" && round.drafted[index].outcome !== "rejected") return [];
  const pairs = rowOf(round, index).residual ?? [];
  if (!pairs.length) return [];
  const shown = pairs.slice(0, SHOWN);
  const rest = Math.max(0, 1 - shown.reduce((sum, [, value]) => sum + value, 0));
  const scale = Math.max(rest, ...shown.map(([, value]) => value));
  const bars = make("div", { class: "bars single", role: "img", part: "residual",
    "aria-label": shown.map(([id, value]) => `${quoted(tokenText(id))}: ${brief(value)}`).join("; ") });
  const add = (name, value, kind) => {
    const stripe = make("i", { class: kind });
    stripe.style.width = `${(100 * value) / scale}%`;
    bars.append(name, make("span", { class: "bar" }, stripe), make("span", { class: "v", text: brief(value) }));
  };
  for (const [id, value] of shown) add(showToken(make("span", { class: id === round.next.id ? "name on" : "name" }), tokenText(id)), value, "r");
  if (rest > 0.0005) add(make("span", { class: "name rest", text: "rest" }), rest, "r rest");
  return [make("h4", { text: "Residual: max(0, p − q), scaled to sum to 1" }), bars];
}

// --- go ------------------------------------------------------------------------------------------------------------------

function onResize([entry]) {
  const width = entry.contentRect.width;
  if (!width) return; // hidden tab
  const layout = width >= WIDE ? "wide" : "narrow";
  if (ui.view.dataset.layout !== layout) {
    ui.view.dataset.layout = layout;
    renderInspector();
  }
  ui.view.toggleAttribute("data-small", width < SMALL);
}

reset();
build();
new ResizeObserver(onResize).observe(ui.view);
redraw();
draw();
watch("value", () => receive(props.value));
if (props.value) receive(props.value); // what was streamed before this component was on the page
