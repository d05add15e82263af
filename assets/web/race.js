// The race: plain and speculative decoding, both recorded beforehand, replayed on one clock.
//
// The body of a gr.HTML component's js_on_load: `element`, `props` and `watch` are given, `STYLE` (race.css) is put in
// front. One `race` message holds both lanes; `phase` messages come while the server measures. Model text reaches the
// page through textContent alone.

const host = element.querySelector(".specviz-race");
const shadow = host.attachShadow({ mode: "open" });

const SPEEDS = [1, 2, 5, 10, 20, 50]; // how many times slower than it really was
const COMFORTABLE = 8; // seconds a replay should about last when it starts by itself
const SMALL = 640; // px of width below which lanes stand one above the other
const KIND = { a: "accepted", r: "recovered", b: "bonus", p: "plain" };
const LANES = ["plain", "speculative"];
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

// --- small helpers --------------------------------------------------------------------------------------------------

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const seconds = (x) => `${x.toFixed(2)}\u202fs`;
const rate = (x) => (x >= 100 ? x.toFixed(0) : x.toFixed(1));
const quoted = (text) => `‹\u2068${text.replace(/^ /, "\u00a0").replaceAll("\n", "⏎").replaceAll("\t", "⇥")}\u2069›`;

// --- state ------------------------------------------------------------------------------------------------------------

const state = { phase: "empty", lanes: [], comparison: {}, passes: "plain", clock: 0, end: 0, slow: 1, playing: false, last: 0 };

host.specviz = {
  get state() { return state.phase; },
  get clock() { return state.clock; },
  get end() { return state.end; },
  get playing() { return state.playing; },
  get slow() { return state.slow; },
  get comparison() { return state.comparison; },
  get lanes() {
    return state.lanes.map((lane) => ({ tokens: lane.shown, passes: lane.passes, text: lane.pieces.slice(0, lane.shown).join(""), done: lane.done }));
  },
  seek: (time) => seek(time),
};

// --- skeleton ---------------------------------------------------------------------------------------------------------

const ui = {};

function build() {
  ui.empty = make("div", { class: "card empty" },
    make("p", { text: say("race.empty_what") }),
    make("p", { text: say("race.empty_then") }));
  ui.phaseText = make("div", { role: "status", "aria-live": "polite", part: "phase" });
  ui.phaseBar = make("i");
  ui.phase = make("div", { class: "card phase hidden" }, ui.phaseText, make("div", { class: "track", "aria-hidden": "true" }, ui.phaseBar));
  ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
  ui.stage = make("div", { class: "lanes hidden" });
  ui.lanes = LANES.map(laneCard);
  ui.stage.append(...ui.lanes.map((lane) => lane.card));
  ui.controls = controlsCard();
  ui.summary = make("div", { class: "card summary hidden", part: "summary", role: "region", "aria-label": say("race.result") });
  ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, ui.empty, ui.note, ui.phase, ui.controls, ui.stage, ui.summary);
  shadow.append(make("style", { text: STYLE }), ui.view);
}

function controlsCard() {
  ui.play = make("button", { class: "play", type: "button", part: "play", on: { click: toggle } });
  const restart = make("button", { type: "button", part: "restart", text: say("race.restart"), on: { click: () => { seek(0); play(); } } });
  ui.speeds = SPEEDS.map((slow) => make("button", { type: "button", "data-slow": slow, text: slow === 1 ? say("race.real_speed") : say("race.slower", { times: slow }),
    on: { click: () => setSpeed(slow) } }));
  ui.clock = make("b", { part: "clock", text: seconds(0) });
  ui.of = make("span", { class: "quiet" });
  ui.seek = make("input", { class: "seek", type: "range", min: "0", max: "1000", step: "1", value: "0", part: "seek",
    "aria-label": say("race.position"), on: { input: () => { pause(); seek((state.end * ui.seek.value) / 1000); } } });
  return make("div", { class: "card hidden", part: "controls" },
    make("div", { class: "controls" }, ui.play, restart,
      make("div", { class: "speeds", role: "group", "aria-label": say("race.speed") }, ...ui.speeds),
      make("span", { class: "clock" }, ui.clock, ui.of)),
    ui.seek);
}

function laneCard(key) {
  const name = say(`race.${key}`);
  const lane = { counts: {} };
  const counters = make("div", { class: "counters" });
  for (const count of ["tokens", "target_passes", "seconds", "tokens_per_second"]) {
    lane.counts[count] = make("b", { "data-count": count, text: "0" });
    counters.append(make("div", {}, lane.counts[count], make("span", { text: say(`race.${count}`) })));
  }
  lane.crown = make("span", { class: "crown", part: "winner", text: say("race.faster") });
  lane.subtitle = make("span", { class: "quiet" });
  lane.bar = make("i");
  lane.prompt = make("span", { class: "prompt", dir: "auto" });
  lane.tokens = make("span", { part: "tokens" });
  lane.text = make("div", { class: "text", part: "text", tabindex: "0", role: "region", "aria-label": say(`race.text_of_${key}`) }, lane.prompt, lane.tokens);
  lane.card = make("section", { class: "card lane", "data-lane": key, "aria-label": name },
    make("div", { class: "top" }, make("h3", { text: name }), lane.subtitle, lane.crown), counters,
    make("div", { class: "track", "aria-hidden": "true" }, lane.bar), lane.text);
  if (key === "speculative") lane.card.append(legend());
  else lane.card.append(make("div", { class: "legend" }, make("span", { text: say("race.plain_legend") })));
  return lane;
}

function legend() {
  const entry = (symbol, kind) => make("span", {}, `${symbol} `, make("b", { class: kind, text: say(`common.${kind}`) }));
  return make("div", { class: "legend" }, entry("✓", "accepted"), entry("↻", "recovered"), entry("★", "bonus"), make("span", { text: `○ ${say("common.plain_step")}` }));
}

// --- messages --------------------------------------------------------------------------------------------------------

const handlers = {
  clear() { show("empty"); },
  phase(message) {
    pause();
    setText(ui.phaseText, message.text);
    ui.phaseBar.style.width = `${100 * (message.fraction ?? 0)}%`;
    show("measuring");
  },
  error(message) {
    setText(ui.note, message.text);
    show(state.lanes.length ? "race" : "empty");
    ui.note.classList.remove("hidden");
  },
  race(message) {
    state.comparison = message.comparison;
    state.passes = message.passes;
    state.lanes = message.lanes.map((lane) => ({ ...lane, starts: sums(lane.counts), shown: 0, passes: 0, done: false }));
    state.end = Math.max(...state.lanes.map((lane) => lane.times.at(-1) ?? 0));
    ui.lanes.forEach((lane, i) => {
      lane.prompt.textContent = message.prompt;
      lane.tokens.replaceChildren();
      setText(lane.subtitle, state.lanes[i].label ?? "");
    });
    setText(ui.of, say("race.of_time", { time: seconds(state.end) }));
    renderSummary();
    show("race");
    setSpeed(SPEEDS.find((slow) => state.end * slow >= COMFORTABLE * 0.6) ?? SPEEDS.at(-1));
    seek(still.matches ? state.end : 0);
    if (still.matches) pause();
    else play();
  },
};

function receive() {
  dispatch(props.value, handlers);
}

function show(phase) {
  state.phase = phase;
  ui.view.dataset.state = phase;
  ui.empty.classList.toggle("hidden", phase !== "empty");
  ui.phase.classList.toggle("hidden", phase !== "measuring");
  ui.note.classList.add("hidden");
  for (const part of [ui.controls, ui.stage, ui.summary]) part.classList.toggle("hidden", phase !== "race");
}

// --- the clock --------------------------------------------------------------------------------------------------------

function play() {
  if (state.clock >= state.end) seek(0);
  state.playing = true;
  state.last = performance.now();
  setText(ui.play, say("race.pause"));
  requestAnimationFrame(tick);
}

function pause() {
  state.playing = false;
  setText(ui.play, state.clock >= state.end ? say("race.again") : say("race.play"));
}

function toggle() {
  if (state.playing) pause();
  else play();
}

function tick(now) {
  if (!state.playing) return;
  // A tab that was in the background goes on where it was, instead of leaping.
  const passed = Math.min(0.25, Math.max(0, (now - state.last) / 1000));
  state.last = now;
  seek(state.clock + passed / state.slow);
  if (state.clock >= state.end) pause();
  else requestAnimationFrame(tick);
}

function setSpeed(slow) {
  state.slow = slow;
  for (const button of ui.speeds) button.setAttribute("aria-pressed", String(Number(button.dataset.slow) === slow));
}

/** Shows the race as it stood `time` seconds after the start. */
function seek(time) {
  state.clock = Math.min(Math.max(time, 0), state.end);
  setText(ui.clock, seconds(state.clock));
  if (shadow.activeElement !== ui.seek) ui.seek.value = String(state.end ? (1000 * state.clock) / state.end : 0);
  ui.seek.setAttribute("aria-valuetext", seconds(state.clock));
  state.lanes.forEach((lane, i) => drawLane(lane, ui.lanes[i]));
  drawWinner();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

/** How many rounds were over at this time; times are ascending. */
function roundsBy(times, time) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Tokens there after each number of rounds: [0, c0, c0 + c1, …]. */
function sums(counts) {
  const starts = [0];
  for (const count of counts) starts.push(starts.at(-1) + count);
  return starts;
}

function drawLane(lane, view) {
  const passes = roundsBy(lane.times, state.clock);
  const tokens = lane.starts[passes];
  lane.passes = passes;
  lane.done = passes === lane.times.length;
  growText(lane, view, tokens);
  const elapsed = Math.min(state.clock, lane.times.at(-1) ?? 0);
  setText(view.counts.tokens, String(tokens));
  setText(view.counts.target_passes, String(passes));
  setText(view.counts.seconds, seconds(elapsed));
  const speed = lane.done ? lane.tokens_per_second : elapsed > 0 ? tokens / elapsed : null;
  setText(view.counts.tokens_per_second, speed === null ? "—" : rate(speed));
  view.bar.style.width = `${lane.tokens ? (100 * tokens) / lane.tokens : 0}%`;
}

function growText(lane, view, count) {
  if (count === lane.shown) return;
  while (view.tokens.childElementCount > count) view.tokens.lastChild.remove();
  const more = document.createDocumentFragment();
  for (let i = view.tokens.childElementCount; i < count; i += 1) {
    const parting = state.comparison.parting?.position === i ? " parting" : "";
    more.append(make("span", { class: `t ${KIND[lane.sources[i]]}${parting}`, "data-kind": KIND[lane.sources[i]], text: lane.pieces[i] }));
  }
  view.tokens.append(more);
  lane.shown = count;
  view.text.scrollTop = view.text.scrollHeight;
}

/** The mark goes to the higher rate; it shows once that lane is home. */
function drawWinner() {
  const [plain, speculative] = state.lanes;
  if (!plain) return;
  const best = (speculative.tokens_per_second ?? 0) >= (plain.tokens_per_second ?? 0) ? 1 : 0;
  ui.lanes.forEach((view, i) => view.crown.toggleAttribute("data-on", i === best && state.lanes[i].done));
}

// --- the result --------------------------------------------------------------------------------------------------------

function renderSummary() {
  const [plain, speculative] = state.lanes;
  const { speedup } = state.comparison;
  const big = make("div", { class: "speedup" }, make("b", { part: "speedup", "data-figure": "speedup", text: typeof speedup === "number" ? `${speedup.toFixed(2)}×` : "—" }),
    make("span", { class: "quiet", text: say("race.speedup") }));
  const verdicts = make("div", { class: "verdicts" }, ...verdictLines(plain, speculative).map((text) => make("p", { text })));
  if (state.comparison.parting) verdicts.append(make("button", { type: "button", part: "show-parting", text: say("race.show_parting"), on: { click: showParting } }));
  ui.summary.replaceChildren(big, verdicts, resultTable());
}

function verdictLines(plain, speculative) {
  const { speedup } = state.comparison;
  const lines = [];
  if (typeof speedup === "number") {
    const figures = { speedup: speedup.toFixed(2), fast: rate(speculative.tokens_per_second), slow: rate(plain.tokens_per_second) };
    lines.push(say(speedup >= 1 ? "race.paid" : "race.did_not_pay", figures));
  }
  lines.push(say("race.needed", { n: speculative.target_passes, tokens: say("common.tokens", { n: speculative.tokens }),
    plain_passes: plain.target_passes, plain_tokens: plain.tokens }));
  lines.push(say("race.both_took", { passes: say(`passes.${state.passes}`) }));
  lines.push(sameness());
  return lines;
}

function sameness() {
  const { greedy, identical, parting } = state.comparison;
  if (!greedy) return say("race.sampled");
  if (identical) return say("race.identical");
  if (!parting) return say("race.not_identical");
  const where = say("race.parting", { place: parting.position + 1, plain: quoted(parting.plain), speculative: quoted(parting.speculative),
    margin: Number(parting.margin.toPrecision(2)) });
  return `${where} ${parting.half_precision ? say("race.half_precision") : say("race.full_precision")}`;
}

/** Stops the clock when both lanes have the token at which they part, and brings it into view. */
function showParting() {
  const { position } = state.comparison.parting;
  pause();
  seek(Math.max(...state.lanes.map((lane) => lane.times[lane.starts.findIndex((tokens) => tokens > position) - 1] ?? state.end)));
  for (const lane of ui.lanes) {
    const token = lane.tokens.children[position];
    if (token) lane.text.scrollTop += token.getBoundingClientRect().top - lane.text.getBoundingClientRect().top - lane.text.clientHeight / 2;
  }
  ui.stage.scrollIntoView({ block: "nearest", behavior: still.matches ? "auto" : "smooth" });
}

function resultTable() {
  const row = (tag, ...cells) => make("tr", {}, ...cells.map((text) => make(tag, { text, scope: tag === "th" ? "col" : null })));
  const line = (name, lane) => row("td", name, String(lane.tokens), String(lane.target_passes), lane.target_passes ? (lane.tokens / lane.target_passes).toFixed(2) : "—",
    seconds(lane.times.at(-1) ?? 0), lane.tokens_per_second === null ? "—" : rate(lane.tokens_per_second));
  return make("table", { part: "table" },
    make("thead", {}, row("th", "", ...["tokens", "target_passes", "per_pass", "time", "tokens_per_second"].map((key) => say(`race.${key}`)))),
    make("tbody", {}, ...state.lanes.map((lane, i) => line(say(`race.${LANES[i]}_short`), lane))));
}

// --- go ------------------------------------------------------------------------------------------------------------------

build();
new ResizeObserver(([entry]) => entry.contentRect.width && ui.view.toggleAttribute("data-small", entry.contentRect.width < SMALL)).observe(ui.view);
pause();
watch("value", receive);
if (props.value) receive();
