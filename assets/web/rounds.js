// The live view of a run: headline figures, the text with its provenance, every round, and an inspector.
//
// This file is the body of a gr.HTML component's js_on_load: `element`, `props`, `server` and `watch` are given, and
// `STYLE` (rounds.css) and dom.js are put in front. Messages (specviz/views/messages.py) arrive one by one as the component's value
// and carry only what is new; the state lives here. Model text reaches the page through textContent alone, inside a
// shadow root that neither Gradio's re-rendering nor its styles can touch.

const host = element.querySelector(".specviz-rounds");
const shadow = host.attachShadow({ mode: "open" });

const CHUNK = 6; // rounds per block of the list; blocks far from the window hold no rows
const DRAW_EVERY = 80; // ms between two drawings
const ROW_GUESS = 82; // px, for rows that were never laid out
const WIDE = 790; // px of component width from which the inspector stands beside the rounds
const SMALL = 520; // px below which it is a phone

// --- state ------------------------------------------------------------------------------------------------------------

const state = {};

function reset() {
  resetPlayback(); // playback.js
  Object.assign(state, {
    phase: "empty", // empty, waiting, running, finished, error
    status: say("rounds.no_run"),
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
    opened: new Set(), // rounds whose tree is shown, by index
    everOpened: false,
  });
}

/** The last of what is handed on to the page's other parts, for those that come later than this one. */
const told = { share: null, charts: {} };

/** For tests and the console: what the component holds. */
host.specviz = {
  get rounds() { return state.rounds; },
  get text() { return state.text; },
  get prompt() { return state.start.prompt; },
  get figures() { return state.figures; },
  get state() { return state.phase; },
  get recorded() { return Boolean(state.start.recorded); },
  get share() { return told.share; },
  get charts() { return told.charts; },
  get chosen() { return state.chosen; },
  get missing() { return state.rounds.flatMap((round, index) => (round ? [] : [index])); },
  // For the page's other parts: why a run failed, the run once it has ended, and a reader's click on a token.
  get note() { return state.note; },
  get finished() {
    const { run, start, rounds, text, figures } = state;
    return state.phase === "finished" && rounds.length && rounds.every(Boolean) ? { run, start, rounds, text, figures } : null;
  },
  choose(round, index) {
    draw(); // the list may lag behind the messages
    choose({ round, index }, { pin: true, reveal: true });
  },
  release() { letGo(false); },
};

// --- the page's skeleton ---------------------------------------------------------------------------------------------

const FIGURES = [
  ["acceptance_length", (x) => x.toFixed(2)],
  ["acceptance_rate", (x) => `${Math.round(100 * x)}\u202f%`],
  ["speedup", (x) => `${x.toFixed(2)}×`],
  ["tokens_per_second", (x) => (x >= 100 ? x.toFixed(0) : x.toFixed(1))],
];

const ui = {};

function build() {
  ui.figures = {};
  const figures = make("div", { class: "figures", part: "figures", role: "group", "aria-label": say("rounds.figures") });
  for (const [name] of FIGURES) {
    ui.figures[name] = make("b", { "data-figure": name, text: "—" });
    const label = [make("span", { class: "long", text: say(`rounds.figure_${name}`) }),
      make("span", { class: "brief", text: say(`rounds.figure_${name}_brief`) })];
    figures.append(make("div", { class: "figure" }, ui.figures[name], ...label));
  }
  ui.view = make("div", { class: "view", part: "view", "data-state": "empty", "data-layout": "narrow" }, figures);
  ui.view.append(make("div", { class: "frame" }, make("div", { class: "main" }, textCard(), transportCard(), roundsCard()), inspectorCard()));
  shadow.append(make("style", { text: STYLE }), ui.view);
}

function textCard() {
  ui.status = make("span", { class: "status", role: "status", "aria-live": "polite", part: "status" });
  ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
  ui.prompt = make("span", { class: "prompt", part: "prompt", dir: "auto" });
  ui.caret = make("span", { class: "caret", "aria-hidden": "true" });
  ui.paper = make("div", { class: "paper", part: "paper" });
  ui.textEmpty = make("div", { class: "empty" }, make("p", {
    text: say("rounds.text_empty"),
  }));
  ui.text = make("div", { class: "text", part: "text", tabindex: "0", role: "region", "aria-label": say("rounds.text_region"),
    on: { click: onTextClick, pointermove: onPointer } },
    ui.textEmpty, ui.paper);
  ui.followText = follower(ui.text);
  ui.recorded = make("span", { class: "recorded hidden", part: "recorded" });
  const head = make("div", { class: "head" }, make("h3", { text: say("rounds.text") }), ui.recorded, ui.status);
  return make("div", { class: "card", part: "text-card" }, head, ui.note, ui.text, legend());
}

function legend() {
  const entry = (kind, rest) =>
    make("span", {}, `${SYMBOL[kind]} `, make("b", { class: kind, text: say(`rounds.${kind}`) }), rest ? ` ${say(rest)}` : "");
  return make("div", { class: "legend", part: "legend" },
    entry("accepted", "rounds.legend_accepted"), entry("recovered", "rounds.legend_recovered"),
    entry("bonus", "rounds.legend_bonus"), entry("rejected"),
    make("span", { text: `┄ ${say("rounds.discarded")}` }), make("span", { text: `○ ${say("rounds.plain")}` }));
}

function roundsCard() {
  ui.roundsEmpty = make("div", { class: "empty" },
    make("p", { text: say("rounds.rounds_empty") }),
    make("p", { text: say("rounds.rounds_how") }));
  ui.list = make("div", { class: "list", role: "list", "aria-label": say("rounds.rounds") });
  ui.rounds = make("div", { class: "rounds", part: "rounds", tabindex: "0", role: "region", "aria-label": say("rounds.rounds_region"),
    on: { click: onChipClick, pointermove: onPointer, focusin: onFocus, keydown: onKey } },
    ui.roundsEmpty, ui.list);
  ui.followRounds = follower(ui.rounds, (following) => ui.newest.classList.toggle("hidden", following));
  ui.newest = make("button", { class: "newest hidden", part: "newest", type: "button", text: say("rounds.jump"),
    on: { click: () => ui.followRounds.jump() } });
  ui.watcher = new IntersectionObserver(onChunksMoved, { root: ui.rounds, rootMargin: "400px 0px" });
  ui.head = make("h3", { text: say("rounds.rounds_title") });
  ui.lossy = make("span", { class: "lossy hidden", part: "lossy", role: "note" });
  ui.meta = make("span", { class: "quiet meta", part: "meta" });
  return make("div", { class: "card", part: "rounds-card" }, make("div", { class: "head" }, ui.head, ui.lossy, ui.meta),
    make("div", { class: "scroller" }, ui.rounds, ui.newest));
}

function inspectorCard() {
  ui.title = make("h3", { part: "inspector-title" });
  ui.body = make("div", { part: "inspector-body" });
  const close = make("button", { class: "close", type: "button", "aria-label": say("rounds.close"), text: "×",
    on: { click: () => letGo(true) } });
  ui.inspector = make("aside", { class: "card inspector", part: "inspector", tabindex: "0", "aria-label": say("rounds.inspector") },
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
  waiting(message) {
    state.phase = "waiting";
    state.status = message.text;
  },
  error(message) {
    state.phase = "error";
    state.status = say("rounds.failed");
    state.note = message.text;
  },
  start(message) {
    // A start repeated for the run on the screen (a resend) only fills in what was missing.
    if (message.run !== state.run) begin(message.run, message.recorded);
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
  trace(message) {
    for (const part of message.parts) handlers[part.kind](part);
    if (state.start.recorded) ui.followRounds.hold(); // a recorded run is read from its beginning
  },
};

function receive(text) {
  const message = dispatch(text, handlers);
  if (!message) return;
  Object.assign(told.charts, message.charts);
  if (message.charts) window.dispatchEvent(new CustomEvent("specviz:charts", { detail: message.charts }));
  // Again for the same run when its speedup was measured, or when rounds that were missing have come.
  if (host.specviz.finished) window.dispatchEvent(new CustomEvent("specviz:run", { detail: host.specviz.finished }));
  if (message.share) window.dispatchEvent(new CustomEvent("specviz:share", { detail: (told.share = message.share) }));
  schedule();
}

/** On a phone the controls fill the screen: a run that starts below it is brought into view. */
function comeIntoView() {
  if (host.getBoundingClientRect().top < 0.75 * window.innerHeight) return;
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  host.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
}

function begin(run, recorded = "") {
  reset();
  ui.inspector.removeAttribute("data-open"); // what it spoke about is gone
  if (!recorded) comeIntoView(); // the page opens with a recorded run: nobody has asked for it yet
  state.run = run;
  state.phase = "running";
  state.status = say("rounds.running");
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
  forgetDrawn(); // playback.js
  Object.assign(state, { drawn: 0, chunks: [], spans: [], distance: { sum: 0, rounds: 0 } });
  ui.followText.jump();
  ui.followRounds.jump();
  renderInspector();
  schedule();
}

function draw() {
  if (ui.view.dataset.state !== state.phase) ui.view.dataset.state = state.phase;
  setText(ui.status, state.phase === "running" && !state.rounds.length ? say("rounds.reading") : state.status);
  setText(ui.meta, metaLine());
  setText(ui.recorded, state.start.recorded ?? "");
  ui.recorded.classList.toggle("hidden", !state.start.recorded);
  drawNote();
  drawFigures();
  const some = state.run !== null;
  ui.textEmpty.classList.toggle("hidden", some);
  ui.roundsEmpty.classList.toggle("hidden", state.rounds.length > 0);
  if (state.drawn < state.rounds.length) appendRounds();
  drawLossy();
  drawPlayback(); // playback.js
  if (state.phase === "finished" && !playback.at) showSomething();
  ui.followText.settle();
  ui.followRounds.settle();
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function metaLine() {
  if (!state.run) return "";
  const { drafter, num_draft_tokens: gamma, settings, greedy } = state.start;
  const parts = [drafter ? `${drafter}, γ = ${gamma}` : say("rounds.plain_decoding")];
  parts.push(settings || say(greedy ? "rounds.greedy" : "rounds.sampled"));
  if (state.figures.tokens) parts.push(`${say("rounds.tokens", { n: state.figures.tokens })} ${say("rounds.in_passes", { n: state.figures.target_passes })}`);
  return parts.join(" · ");
}

function drawNote() {
  const holes = host.specviz.missing.length;
  const hole = holes ? say("rounds.holes", { n: holes }) : "";
  setText(ui.note, [state.note, hole].filter(Boolean).join(" "));
  ui.note.classList.toggle("hidden", !state.note && !hole);
}

function drawFigures() {
  for (const [name, format] of FIGURES) {
    const value = figuresHere()[name]; // playback.js
    setText(ui.figures[name], typeof value === "number" ? format(value) : "—");
  }
}

/** The rule's mark, with what it costs as measured so far: no reader should take a lossy text for the target's. */
function drawLossy() {
  const { sum, rounds } = state.distance;
  const lossy = rounds > 0 || (state.start.rule === "typical" && !state.start.greedy && Boolean(state.start.drafter));
  const measured = rounds ? [say("rounds.lossy_measured", { distance: plainNumber(sum / rounds) })] : [];
  setText(ui.lossy, lossy ? [say("rounds.lossy_mark"), ...measured].join(" ") : "");
  ui.lossy.classList.toggle("hidden", !lossy);
}

function appendRounds() {
  const newestChunk = Math.floor((state.rounds.length - 1) / CHUNK);
  for (let index = state.drawn; index < state.rounds.length; index += 1) {
    state.spans[index] = textSpans(index);
    state.spans[index].forEach(writeToken);
    noteRound(index); // playback.js
    countDistance(state.rounds[index]);
    const chunk = chunkOf(index);
    if (Math.floor(index / CHUNK) === newestChunk && !chunk.built && !isLater(chunk)) fill(chunk, index);
    if (chunk.built) chunk.box.append(roundRow(index));
    else chunk.box.style.height = `${(index - chunk.first + 1) * ROW_GUESS}px`;
  }
  state.drawn = state.rounds.length;
  ensureTabStop();
}

function countDistance(round) {
  if (!round || !isLossy(round)) return;
  state.distance.sum += round.distance;
  state.distance.rounds += 1;
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
    if (entry.isIntersecting && !chunk.built && !isLater(chunk)) fill(chunk); // isLater: playback.js
    else if (!entry.isIntersecting && chunk.built && !newest && !chunk.box.contains(shadow.activeElement)) {
      chunk.box.style.height = `${entry.boundingClientRect.height}px`; // keeps its place, holds no rows
      chunk.box.replaceChildren();
      chunk.built = false;
    }
  }
  ensureTabStop();
}

/**
 * A round's row. A tree's row holds the kept path alone, in the chips of a chain, and says how much was tried for it:
 * a class reads the list as text grows, and can read one tree at a time, so a tree unfolds where somebody asks for it.
 */
function roundRow(index) {
  const round = state.rounds[index];
  if (!round) return dressed(make("div", { class: "hole", role: "listitem", "data-missing": index, text: say("rounds.hole", { round: index + 1 }) }));
  const tree = isTree(round);
  const open = tree && state.opened.has(index);
  const chips = make("div", { class: "chips" });
  if (!open) fillPath(chips, index, round);
  if (tree) chips.append(toggle(index, round, open));
  if (open) chips.append(...early(round));
  return dressed(make("div", { class: "round", part: "round", role: "listitem", "data-round": index }, // playback.js
    make("div", { class: "n", text: String(index + 1) }), chips, sumCell(round, tree), ...(open ? [treeBox(index, round)] : [])));
}

/** The chips of one line: a chain's draft tokens, or a tree's kept path, and the target's own token. */
function fillPath(chips, index, round) {
  for (const position of pathOf(round)) {
    if (position !== "next") chips.append(draftChip(index, position, round));
  }
  chips.append(...early(round));
  const arrow = make("span", { class: "arrow", "aria-hidden": "true", text: "→" });
  chips.append(round.drafted.length ? make("span", { class: "ending" }, arrow, nextChip(index, round)) : nextChip(index, round));
}

/** What a round's line holds: all of a chain, of a tree the kept path; then the target's own token. */
const pathOf = (round) => [...(isTree(round) ? acceptedIndexes(round) : round.drafted.keys()), "next"];

/** Why the drafter stopped before γ. */
function early(round) {
  if (round.confidence === undefined) return [];
  return [make("span", { class: "early", part: "early", text: say("rounds.early", { confidence: plainNumber(round.confidence) }) })];
}

/** Scrolls the list no further than it takes to show a row; one too high for it, from its top. */
function bringIn(row) {
  const box = ui.rounds.getBoundingClientRect();
  const at = row.getBoundingClientRect();
  if (state.phase === "running" || row.dataset.round < state.rounds.length - 1) ui.followRounds.hold();
  ui.rounds.scrollTop += Math.min(Math.max(0, at.bottom - box.bottom), at.top - box.top);
}

function toggle(index, round, open) {
  const kept = say("rounds.kept", { kept: acceptedIndexes(round).length, drafted: round.drafted.length });
  return make("button", { type: "button", class: "toggle", part: "toggle", tabindex: "-1", "data-round": index, "aria-expanded": String(open),
    "aria-label": say("rounds.toggle", { round: index + 1, kept }), text: `${open ? "▾" : "▸"} ${kept}` });
}

/** Shows or folds a round's tree, in place. */
function setOpen(index, open) {
  state.everOpened = true;
  if (open) state.opened.add(index);
  else state.opened.delete(index);
  const row = ui.list.querySelector(`.round[data-round="${index}"]`);
  if (!row) return; // its block is far from the window, and will be built as it should be
  const focused = row.contains(shadow.activeElement) ? shadow.activeElement : null;
  const next = roundRow(index);
  row.replaceWith(next);
  if (open) bringIn(next);
  if (!ui.tabStop?.isConnected) setTabStop(next.querySelector(".chip.chosen") ?? next.querySelector(".chip"));
  if (!focused) return;
  const same = focused.matches(".chip") && chipAt(index, focused.dataset.index);
  (same || next.querySelector(".toggle")).focus({ preventScroll: true });
}

// Sizes in a tree, px: lines are drawn from them, so nothing has to be measured.
const TREE = { root: 18, chip: 92, line: 18, height: 41, space: 6, heads: 18 };

function treeBox(index, round) {
  const { spots, columns, height } = layOut(round);
  const heads = columns.map((nodes) => columnHead(round, nodes));
  const top = heads.some(Boolean) ? TREE.heads : 0;
  const x = (column) => TREE.root + column * (TREE.chip + TREE.line);
  const y = (row) => top + row * (TREE.height + TREE.space);
  const plane = make("div", { class: "plane" });
  plane.style.cssText = `width: ${x(columns.length) - TREE.line}px; height: ${y(height) - TREE.space}px;`
    + ` --chip-width: ${TREE.chip}px; --chip-height: ${TREE.height}px;`;
  plane.append(branches(round, spots, x, y));
  heads.forEach((text, column) => {
    if (!text) return;
    const head = make("span", { class: "source", text });
    head.style.left = `${x(column)}px`;
    plane.append(head);
  });
  for (const node of columns.flat()) {
    const button = node === "next" ? nextChip(index, round) : draftChip(index, node, round);
    const spot = spots.get(node);
    button.style.left = `${x(spot.column)}px`;
    button.style.top = `${y(spot.row)}px`;
    plane.append(button);
  }
  return make("div", { class: "tree", part: "tree", role: "group", "aria-label": say("rounds.tree", { round: index + 1 }) }, plane);
}

/** What proposed a whole column, where one layer or head did. */
function columnHead(round, nodes) {
  const sources = new Set(nodes.filter((node) => node !== "next").map((node) => round.drafted[node].source));
  return sources.size === 1 && !sources.has(undefined) ? sourceName([...sources][0]) : undefined;
}

const svg = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

/** The lines from each node to its parent; the kept path is drawn last, over the others. */
function branches(round, spots, x, y) {
  const lines = svg("svg", { class: "branches", "aria-hidden": "true" });
  const middle = (row) => y(row) + TREE.height / 2;
  lines.append(svg("circle", { cx: 4, cy: middle(0), r: 3.5 }));
  const kind = (node) => (node === "next" ? nextKind(round) : round.drafted[node].outcome);
  const rank = { discarded: 0, rejected: 1 };
  const nodes = [...spots.keys()].filter((node) => node !== -1).sort((a, b) => (rank[kind(a)] ?? 2) - (rank[kind(b)] ?? 2));
  for (const node of nodes) {
    const from = spots.get(parentOf(round, node));
    const to = spots.get(node);
    const start = from.column < 0 ? 4 : x(from.column) + TREE.chip;
    const end = x(to.column);
    const bend = (start + end) / 2;
    lines.append(svg("path", { class: kind(node), "data-index": node,
      d: `M${start} ${middle(from.row)}C${bend} ${middle(from.row)} ${bend} ${middle(to.row)} ${end} ${middle(to.row)}` }));
  }
  return lines;
}

function sumCell(round, tree) {
  const judged = round.drafted.filter((token) => token.outcome !== "discarded").length;
  const accepted = acceptedIndexes(round).length;
  const lines = [make("b", { text: say("rounds.tokens", { n: round.emitted.length }) })];
  if (!round.drafted.length) lines.push(say("rounds.plain"));
  else if (tree) lines.push(say("rounds.judged", { judged }));
  else lines.push(say(judged < round.drafted.length ? "rounds.accepted_of_judged" : "rounds.accepted_of_all", { accepted, judged }));
  if (isLossy(round)) lines.push(make("span", { class: "lossy", text: say("rounds.lossy", { distance: brief(round.distance) }), title: sayDistance(round) }));
  if (round.dropped) lines.push(make("span", { class: "cut", text: `✂ ${say("rounds.cut_off", { dropped: round.dropped })}`, title: say("rounds.cut_off_why") }));
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
  return chip(index, i, token.outcome, token.text, chipLines(round, token), chipLabel(round, i), wasDropped(round, i));
}

/** A verdict at a glance: its sign, the numbers it came from, and the coin. */
function chipLines(round, token) {
  const sign = SYMBOL[token.outcome];
  if (isGreedy(token) && token.outcome !== "discarded") {
    return [line(`${sign} ${say(token.outcome === "accepted" ? "rounds.match" : "rounds.no_match")}`),
      line(`${say("rounds.raw")} ${token.q_raw === null ? "" : `q ${brief(token.q_raw)} `}p ${brief(token.p_raw)}`)];
  }
  if (isBlock() && isJudged(token)) return [line(`${sign} h ${brief(token.accept_prob)} u ${brief(token.u)}`), coinBar(token)];
  if (token.outcome === "discarded") return [line(`┄ ${say("rounds.discarded")}`)];
  if (isLossy(round)) return [line(`${sign} p ${brief(token.p)}`)];
  const left = token.p_left === undefined ? `p ${brief(token.p)}` : `p′ ${brief(token.p_left)}`;
  return [line(`${sign} q ${brief(token.q)} ${left}`), coinBar(token)];
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

function chipLabel(round, index) {
  const token = round.drafted[index];
  const where = isTree(round) ? [placeInTree(round, index)] : [];
  const by = token.source === undefined ? [] : [say("rounds.label_source", { source: sourceName(token.source) })];
  return [quoted(token.text), say(`rounds.${token.outcome}`), verdictLabel(round, token), ...where, ...by].join(", ");
}

function verdictLabel(round, token) {
  const block = isBlock() && isJudged(token);
  if (token.outcome === "discarded" && !block) return say("rounds.label_unjudged");
  if (isGreedy(token)) return say(token.outcome === "accepted" ? "rounds.label_match" : "rounds.label_no_match");
  if (isLossy(round)) return say("rounds.label_typical", { p: plainNumber(token.p) });
  const numbers = { q: plainNumber(token.q), p: plainNumber(token.p), u: plainNumber(token.u), threshold: plainNumber(token.accept_prob) };
  if (token.p_left === undefined) return say("rounds.label_coin", numbers);
  return say("rounds.label_coin_left", { ...numbers, left: plainNumber(token.p_left) });
}

function nextChip(index, round) {
  const { next } = round;
  const kind = nextKind(round);
  const greedy = next.u === null;
  const raw = greedy ? (rowOf(round, "next").p_raw ?? []).find(([id]) => id === next.id)?.[1] : undefined;
  const lines = [];
  const from = kind === "recovered" && isLossy(round) ? "target" : kind;
  if (!greedy) lines.push(line(`${SYMBOL[kind]} ${say(`rounds.chip_${from}`, { prob: brief(next.prob) })}`));
  else {
    lines.push(line(`${SYMBOL[kind]} ${say(kind === "recovered" ? "rounds.choice" : `rounds.${kind}`)}`));
    if (raw !== undefined) lines.push(line(`${say("rounds.raw")} p ${brief(raw)}`));
  }
  const label = say("rounds.label_next", { token: quoted(next.text), kind: say(`rounds.${kind}`), prob: plainNumber(raw ?? next.prob) });
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
  if (button && reveal) showInTree(button);
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

/**
 * When a run ends and nobody has pointed at anything, the newest refusal is the most telling token to show; and if
 * nobody has unfolded a tree, that round's.
 */
function showSomething() {
  const spot = state.start.recorded ? firstRefusal() : newestRefusal();
  if (!spot) return;
  if (!state.everOpened && isTree(state.rounds[spot.round])) setOpen(spot.round, true);
  if (!state.everChosen && ui.view.dataset.layout === "wide") choose(spot);
}

/** A recorded run is read from its beginning. */
function firstRefusal() {
  const refused = (round) => round.drafted.findIndex((token) => token.outcome === "rejected");
  const round = state.rounds.findIndex((one) => refused(one) >= 0);
  return round < 0 ? { round: 0, index: "next" } : { round, index: refused(state.rounds[round]) };
}

function newestRefusal() {
  for (let r = state.rounds.length - 1; r >= Math.max(0, state.rounds.length - 60); r -= 1) {
    const i = state.rounds[r]?.drafted.findIndex((token) => token.outcome === "rejected") ?? -1;
    if (i >= 0) return { round: r, index: i };
  }
  return state.rounds.at(-1) ? { round: state.rounds.length - 1, index: "next" } : null;
}

/** A deep tree scrolls in its own box: brings a chip of it into that box, and moves nothing else. */
function showInTree(button) {
  const box = button.closest(".tree");
  if (!box) return;
  const at = button.offsetLeft;
  if (at < box.scrollLeft || at + button.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = at - TREE.root - TREE.line;
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
  const opener = event.target.closest(".toggle");
  if (opener) return setOpen(Number(opener.dataset.round), opener.getAttribute("aria-expanded") === "false");
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
  const within = button.closest(".tree") ? stepInTree(event.key, state.rounds[round], index) : undefined;
  const at = Math.max(0, pathOf(state.rounds[round]).indexOf(index));
  const moves = {
    ArrowRight: [round, at + 1], ArrowLeft: [round, at - 1], ArrowDown: [round + 1, at], ArrowUp: [round - 1, at],
    Home: [0, 0], End: [state.rounds.length - 1, 0],
  };
  if (!Object.hasOwn(moves, event.key)) return; // Enter and Space click the button
  event.preventDefault();
  if (within !== undefined) chipAt(round, within).focus();
  else focusChip(...moves[event.key]);
}

/** Where a key leads inside an open tree: along the branch, or between siblings; undefined where it leads out of it. */
function stepInTree(key, round, index) {
  const kin = families(round);
  const parent = parentOf(round, index);
  const beside = kin.get(parent);
  const ahead = kin.get(index);
  switch (key) {
    case "ArrowLeft": return parent < 0 ? undefined : parent;
    case "ArrowUp": return beside[beside.indexOf(index) - 1];
    case "ArrowDown": return beside[beside.indexOf(index) + 1];
    case "ArrowRight":
      if (!ahead.length) return index === "next" ? undefined : index; // the end of a branch that was cut
      return ahead.find((node) => node === "next" || round.drafted[node].outcome === "accepted") ?? ahead[0];
    default: return undefined;
  }
}

/** Focuses chip `at` of a round's line; past either end it steps into the neighbouring round. */
function focusChip(round, at) {
  const lane = (index) => (state.rounds[index] ? pathOf(state.rounds[index]) : null);
  const sideways = at < 0 ? -1 : lane(round) && at >= lane(round).length ? 1 : 0;
  const vertical = shadow.activeElement?.dataset.round !== String(round);
  if (sideways && !vertical) {
    round += sideways;
    at = sideways < 0 ? Infinity : 0;
  }
  const path = lane(round);
  if (!path) return;
  const chunk = chunkOf(round);
  if (!chunk.built) fill(chunk);
  if (round < state.rounds.length - 1) ui.followRounds.hold();
  chipAt(round, path[Math.min(Math.max(at, 0), path.length - 1)])?.focus();
}

/** One chip of the list is reached with Tab, and after it the switch of its row's tree. */
function setTabStop(button) {
  for (const [stop, tabIndex] of [[ui.tabStop, -1], [button, 0]]) {
    if (!stop) continue;
    stop.tabIndex = tabIndex;
    const opener = stop.closest(".round")?.querySelector(".toggle");
    if (opener) opener.tabIndex = tabIndex;
  }
  ui.tabStop = button;
}

/** Tab enters the list at one chip: the one last focused, else the newest. */
function ensureTabStop() {
  if (ui.tabStop?.isConnected && (ui.tabStop === shadow.activeElement || ui.tabStop.matches(".chosen"))) return;
  const rows = ui.list.querySelectorAll(".round");
  const newest = rows[rows.length - 1]?.querySelector(".chip");
  if (newest) setTabStop(newest);
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
startPlayback(); // playback.js
new ResizeObserver(onResize).observe(ui.view);
redraw();
draw();
watch("value", () => receive(props.value));
if (props.value) receive(props.value); // what was streamed before this component was on the page
