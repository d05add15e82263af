// The guided tour: eight steps, each of which does something on the page and then says what it measured there.
//
// The body of a gr.HTML component's js_on_load: `element` and `props` are given; dom.js and tokens.js stand in front.
// The component's value says what to run with; runs are asked for with `specviz:apply` (remote.js), and every figure is
// taken from the live view's finished run (rounds.js), never from here.

const host = element.querySelector(".specviz-tour");
const shadow = host.attachShadow({ mode: "open" });
const plan = JSON.parse(props.value);

const KEPT = "specviz:tour"; // the step, in this tab's session storage
const PATIENCE = 30000; // ms until a run that was asked for must have begun
const GRACE = 2000; // ms for the last messages of a run that is over
const REFUSAL = 3000; // ms after which a sentence beside a control is about this run and no earlier one

// --- what a step runs -------------------------------------------------------------------------------------------------

/** Every control, so that a step shows the same whatever the visitor set before. */
const settings = (changes = {}) => ({
  prompt: plan.prompts.story, drafter: "draft_model", num_draft_tokens: plan.short_draft, branches: 1, confidence: 0,
  temperature: 0, top_k: 0, top_p: 1, min_p: 0, rule: "auto", chat: false, max_new_tokens: plan.new_tokens, seed: 0,
  ...changes,
});

const live = () => document.querySelector(".specviz-rounds").specviz;
const inView = (selector) => document.querySelector(".specviz-rounds").shadowRoot.querySelector(selector);
const figure = (name) => inView(`[data-figure="${name}"]`).parentElement;
const row = (round) => inView(`.round[data-round="${round}"] .chips`);

// The figures as the page writes them above the text.
const known = (format) => (x) => (typeof x === "number" ? format(x) : say("tour.no_value"));
const length = known((x) => x.toFixed(2));
const share = known((x) => `${Math.round(100 * x)}\u202f%`);
const rate = known((x) => (x >= 100 ? x.toFixed(0) : x.toFixed(1)));

/** What the sentences about a whole run quote. */
function headline({ figures }) {
  return {
    tokens: figures.tokens, passes: figures.target_passes, length: length(figures.acceptance_length),
    share: share(figures.acceptance_rate), rate: rate(figures.tokens_per_second),
  };
}

const countOf = (run, outcome) => run.rounds.flatMap((round) => round.drafted).filter((token) => token.outcome === outcome).length;

async function showPass(ask) {
  const run = await ask(settings({ drafter: "plain" }));
  return { said: say("tour.pass_said", headline(run)), rings: () => [figure("acceptance_length")] };
}

async function showDraft(ask) {
  const run = await ask(settings());
  return { said: say("tour.draft_said", headline(run)), rings: () => [figure("acceptance_length"), figure("acceptance_rate")] };
}

/** The first refusal of the run on the screen; of a new run where there is none to see. */
async function showRound(ask) {
  const isChain = (round) => round.drafted.every((token, place) => token.parent === place - 1);
  const find = (run) => run?.rounds.every(isChain) ? run.rounds.findIndex((round) => round.next.kind === "recovered") : -1;
  let run = live().finished;
  if (find(run) < 0) run = await ask(settings());
  openTab("generate");
  const at = find(run);
  const round = run.rounds[Math.max(at, 0)];
  const accepted = round.drafted.filter((token) => token.outcome === "accepted").length;
  const values = { round: round.index + 1, drafted: round.drafted.length, accepted, next: quoted(round.next.text), emitted: round.emitted.length };
  const position = at < 0 ? "next" : accepted;
  const said = at < 0 ? say("tour.round_clean", values)
    : say("tour.round_said", { ...values, refused: quoted(round.drafted[accepted].text), discarded: round.drafted.length - accepted - 1 });
  return { said, choice: [round.index, position], rings: () => [row(round.index)] };
}

/** The likeliest draft token whose coin was an open one. */
async function showCoin(ask) {
  const run = await ask(settings({ temperature: 0.8 }));
  const tokens = run.rounds.flatMap((round) => round.drafted.map((token, index) => ({ round, token, index })));
  const decided = tokens.filter(({ token }) => token.u !== null && token.accept_prob > 0 && token.accept_prob < 1);
  if (!decided.length) return { said: say("tour.coin_none"), rings: () => [] };
  const open = decided.filter(({ token }) => Math.abs(token.accept_prob - 0.5) < 0.3);
  const { round, token, index } = (open.length ? open : decided).reduce((best, one) => (one.token.q > best.token.q ? one : best));
  const [u, threshold] = compared(token.u, token.accept_prob);
  const values = { round: round.index + 1, token: quoted(token.text), u, next: quoted(round.next.text),
    ratio: `${quotient(token.p, token.q, threshold)} = ${threshold}` };
  const said = token.outcome === "accepted" ? say("tour.coin_accepted", values) : say("tour.coin_rejected", values);
  return { said, choice: [round.index, index], rings: () => [row(round.index)] };
}

async function showMatch(ask) {
  const good = headline(await ask(settings()));
  const bad = headline(await ask(settings({ drafter: "early_exit", exit_layer: 1 })));
  const values = { good: good.share, good_length: good.length, bad: bad.share, bad_length: bad.length };
  return { said: say("tour.match_said", values), rings: () => [figure("acceptance_rate"), figure("acceptance_length")] };
}

async function showLong(ask) {
  const short = headline(await ask(settings()));
  const run = await ask(settings({ num_draft_tokens: plan.long_draft }));
  const long = headline(run);
  const values = {
    short: plan.short_draft, short_length: short.length, short_rate: short.rate, long: plan.long_draft, long_length: long.length, long_rate: long.rate,
    discarded: countOf(run, "discarded"), drafted: run.rounds.reduce((sum, round) => sum + round.drafted.length, 0),
  };
  const unused = run.rounds.map((round) => round.drafted.filter((token) => token.outcome === "discarded").length);
  const worst = unused.indexOf(Math.max(...unused));
  const position = Math.max(0, run.rounds[worst].drafted.findIndex((token) => token.outcome === "rejected"));
  return { said: say("tour.long_said", values), choice: [worst, position], rings: () => [row(worst)] };
}

async function showCopy(ask) {
  const run = await ask(settings({ prompt: plan.prompts.repeats, drafter: "prompt_lookup" }));
  return { said: say("tour.copy_said", headline(run)), rings: () => [figure("acceptance_length"), figure("acceptance_rate")] };
}

async function showSame(ask) {
  const plain = await ask(settings({ drafter: "plain" }));
  const speculative = await ask(settings());
  const [one, other] = [plain, speculative].map((run) => run.rounds.flatMap((round) => round.emitted));
  const rings = () => [inView("[part=text-card]")];
  const parting = one.findIndex((id, place) => id !== other[place]);
  if (parting < 0 && one.length === other.length) {
    const passes = { plain: plain.rounds.length, speculative: speculative.rounds.length };
    return { said: say("tour.same_equal", { tokens: one.length, ...passes }), rings };
  }
  const n = parting < 0 ? one.length : parting;
  const word = (run) => quoted(run.rounds.flatMap((round) => round.pieces)[n] ?? "");
  return { said: say("tour.same_parted", { n, plain: word(plain), speculative: word(speculative) }), rings };
}

const STEPS = [
  { title: say("tour.pass_title"), text: say("tour.pass_text"), show: showPass, lab: { tab: "why", text: say("tour.pass_lab") } },
  { title: say("tour.draft_title"), text: say("tour.draft_text"), show: showDraft },
  { title: say("tour.round_title"), text: say("tour.round_text"), show: showRound },
  { title: say("tour.coin_title"), text: say("tour.coin_text"), show: showCoin },
  { title: say("tour.match_title"), text: say("tour.match_text"), show: showMatch },
  { title: say("tour.long_title"), text: say("tour.long_text"), show: showLong, lab: { tab: "why", text: say("tour.long_lab") } },
  { title: say("tour.copy_title"), text: say("tour.copy_text"), show: showCopy },
  { title: say("tour.same_title"), text: say("tour.same_text"), show: showSame, lab: { tab: "lossless", text: say("tour.same_lab") } },
];

// --- state ------------------------------------------------------------------------------------------------------------

const state = {
  open: false,
  step: storedStep(),
  shown: new Map(), // by step: what its button brought
  failure: null, // why the button of this step brought nothing
  showing: null, // the showing in progress; it ends when the visitor goes on
  written: null, // what stands in the panel's box
  chose: false, // a token of the live view is pinned by the tour
  measured: null, // whether the visitor wants speedups measured, before the tour's runs left that out
};

/** For tests and the console. */
host.specviz = {
  get open() { return state.open; },
  get step() { return state.step; },
  get said() { return state.shown.get(state.step)?.said ?? null; },
  get failure() { return state.failure; },
};

// A browser may refuse storage altogether; then a visitor starts at the first step.
function storedStep() {
  try {
    const step = Number(sessionStorage.getItem(KEPT));
    return Number.isInteger(step) && step > 0 && step < STEPS.length ? step : 0;
  } catch {
    return 0;
  }
}

function storeStep() {
  try {
    sessionStorage.setItem(KEPT, String(state.step));
  } catch {
    // not kept: the tour itself goes on
  }
}

// --- the page: runs, tabs, rings --------------------------------------------------------------------------------------

const isVisible = (node) => Boolean(node) && node.getClientRects().length > 0;
const isIdle = () => isVisible(document.querySelector("#go"));
const tabButton = (name) => [...document.querySelectorAll(`button[data-tab-id="${name}"]`)].find(isVisible);

function openTab(name) {
  const button = tabButton(name);
  if (button && button.getAttribute("aria-selected") !== "true") button.click();
}

// The page tells nobody when its buttons come and go, so while the tour is open it watches the column they stand in.
const waits = new Set();
const watcher = new MutationObserver(onPage);

function onPage() {
  for (const check of waits) check();
  renderAction();
}

/** Waits until test() gives anything but undefined, and for that; what it throws is thrown. */
function until(test) {
  return new Promise((resolve, reject) => {
    const check = () => {
      try {
        const found = test();
        if (found === undefined) return;
        resolve(found);
      } catch (error) {
        reject(error);
      }
      waits.delete(check);
    };
    waits.add(check);
    check();
  });
}

class Left extends Error {} // the visitor went on meanwhile

/** Runs these settings on the page; the finished run as the live view tells it. */
async function run(changed, showing) {
  const goOn = () => {
    if (state.showing !== showing) throw new Left();
  };
  await until(() => (goOn(), isIdle() || undefined));
  const before = live().finished?.run;
  const began = performance.now();
  let busy = false;
  let over = null;
  window.dispatchEvent(new CustomEvent("specviz:apply", { detail: { settings: changed, press: "generate", measure: false } }));
  const timers = [REFUSAL, PATIENCE].map((after) => setTimeout(onPage, after + 50));
  try {
    return await until(() => {
      goOn();
      busy ||= !isIdle();
      const waited = performance.now() - began;
      const finished = live().finished;
      if (finished && finished.run !== before && isIdle()) return whole(finished);
      if (busy && isIdle()) {
        if (over === null) timers.push(setTimeout(onPage, GRACE + 50));
        over ??= performance.now();
        const told = live().state === "error" || live().state === "finished";
        if (told || performance.now() - over > GRACE) throw new Error(live().note || say("tour.ended_early"));
      }
      if (!busy && waited > REFUSAL && isVisible(document.querySelector(".sv-controls .validation-error"))) throw new Error(say("tour.refused"));
      if (!busy && waited > PATIENCE) throw new Error(say("tour.nothing_started"));
      return undefined;
    });
  } finally {
    timers.forEach(clearTimeout);
  }
}

function whole(finished) {
  if (finished.rounds.at(-1).stop_reason === undefined) throw new Error(say("tour.stopped"));
  return finished;
}

/** The tour's runs leave out the speedup's own two runs; the visitor's choice comes back when it closes. */
function leaveOutSpeedup() {
  if (state.measured === null) state.measured = document.querySelector("#measured input").checked;
}

function bringBackSpeedup() {
  if (state.measured) window.dispatchEvent(new CustomEvent("specviz:apply", { detail: { settings: {}, press: null, measure: true } }));
  state.measured = null;
}

const RING = { outline: "3px solid var(--sv-focus)", outlineOffset: "3px", borderRadius: "6px" };
let ringed = [];

/** Rings these nodes and no others. They lie in other shadow roots, so the ring is a style of their own. */
function ring(nodes) {
  for (const node of ringed) Object.assign(node.style, { outline: "", outlineOffset: "", borderRadius: "" });
  ringed = nodes.filter(Boolean);
  for (const node of ringed) Object.assign(node.style, RING);
}

/** Scrolls the page so far that a node stands between the sticky figures and what is docked to the bottom. */
function bring(node) {
  const sheet = inView("[part=inspector][data-open]");
  const covers = [ui.panel, sheet].filter((one) => isVisible(one) && getComputedStyle(one).position === "fixed");
  const bottom = Math.min(...covers.map((one) => one.getBoundingClientRect().top)) - 14;
  const top = node.closest(".figures") ? 8 : inView(".figures").getBoundingClientRect().height + 8;
  const box = node.getBoundingClientRect();
  const away = box.top < top || box.height > bottom - top ? box.top - top : Math.max(0, box.bottom - bottom);
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (away) window.scrollBy({ top: away, behavior: still ? "auto" : "smooth" });
}

// --- the panel --------------------------------------------------------------------------------------------------------

const ui = {};

function build() {
  ui.opener = make("button", { class: "opener", type: "button", part: "opener", "aria-expanded": "false", "aria-controls": "panel", on: { click: open } });
  ui.progress = make("span", { class: "progress", part: "progress" });
  ui.dots = make("span", { class: "dots", "aria-hidden": "true" }, ...STEPS.map(() => make("i")));
  ui.title = make("h2", { tabindex: "-1", part: "title", id: "title" });
  ui.text = make("p", { class: "text", part: "text" });
  ui.said = make("div", { class: "said", role: "status", "aria-live": "polite", part: "said" });
  ui.back = make("button", { type: "button", part: "back", text: say("tour.back"), on: { click: () => go(state.step - 1) } });
  ui.show = make("button", { class: "show", type: "button", part: "show", on: { click: show } });
  ui.lab = make("button", { type: "button", part: "lab", on: { click: () => openTab(STEPS[state.step].lab.tab) } });
  ui.next = make("button", { type: "button", part: "next", on: { click: next } });
  const shut = make("button", { class: "close", type: "button", part: "close", "aria-label": say("tour.close"), text: "×", on: { click: close } });
  const explains = make("div", { class: "explains" }, ui.title, ui.text);
  ui.panel = make("section", { class: "panel", part: "panel", id: "panel", role: "dialog", "aria-label": say("tour.name"), "aria-describedby": "title", hidden: true },
    make("div", { class: "top" }, ui.progress, ui.dots, shut),
    make("div", { class: "body" }, explains, ui.said),
    make("div", { class: "actions" }, ui.back, ui.show, ui.lab, ui.next));
  ui.panel.addEventListener("keydown", onKey);
  shadow.append(make("style", { text: STYLE }), ui.opener, ui.panel);
  new ResizeObserver(dock).observe(ui.panel);
  window.addEventListener("resize", dock);
  renderOpener();
}

/** Leaves the page room to scroll clear of the panel. */
function dock() {
  const height = state.open ? window.innerHeight - ui.panel.getBoundingClientRect().top : 0;
  document.documentElement.style.setProperty("--sv-dock", `${Math.ceil(height)}px`);
}

function onKey(event) {
  if (event.key !== "Escape") return;
  event.stopPropagation();
  close();
}

function render() {
  const step = STEPS[state.step];
  ui.progress.textContent = say("tour.progress", { n: state.step + 1, count: STEPS.length });
  [...ui.dots.children].forEach((dot, place) => dot.classList.toggle("on", place <= state.step));
  ui.title.textContent = step.title;
  ui.text.textContent = step.text;
  ui.back.disabled = state.step === 0;
  ui.next.textContent = state.step === STEPS.length - 1 ? say("tour.finish") : say("tour.next");
  const lab = step.lab && tabButton(step.lab.tab) ? step.lab : null;
  ui.lab.hidden = !lab;
  ui.lab.textContent = lab ? lab.text : "";
  renderSaid();
  renderAction();
}

/** Written only when it changes: it is read aloud. */
function renderSaid() {
  const shown = state.shown.get(state.step);
  const [kind, text] = state.failure ? ["failed", say("tour.failed", { reason: state.failure })]
    : state.showing ? ["running", say("tour.running")] : shown ? ["measured", shown.said] : ["before", say("tour.before")];
  if (ui.said.dataset.kind === kind && state.written === text) return;
  ui.said.dataset.kind = kind;
  state.written = text;
  const head = kind === "measured" ? [make("b", { text: say("tour.measured") })] : [];
  ui.said.replaceChildren(...head, make("p", { text: text.replace(/ ([=<]) /g, "\u00a0$1\u00a0") })); // an equation stays on one line
}

/** The button that does it keeps the focus while it may not be pressed. */
function renderAction() {
  if (!state.open) return;
  const waiting = Boolean(state.showing) || !isIdle();
  const text = state.showing ? say("tour.running") : state.failure ? say("tour.retry") : state.shown.has(state.step) ? say("tour.again") : say("tour.show");
  if (ui.show.textContent !== text) ui.show.textContent = text;
  ui.show.setAttribute("aria-disabled", String(waiting));
  ui.show.title = waiting && !state.showing ? say("tour.busy") : "";
  ui.show.classList.toggle("primary", !state.shown.has(state.step));
  ui.next.classList.toggle("primary", state.shown.has(state.step));
}

function renderOpener() {
  ui.opener.textContent = state.step ? say("tour.resume", { n: state.step + 1, count: STEPS.length }) : say("tour.start");
  ui.opener.setAttribute("aria-expanded", String(state.open));
}

// --- what a visitor does ----------------------------------------------------------------------------------------------

function open() {
  state.open = true;
  watcher.observe(document.querySelector(".sv-controls"), { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style"] });
  ui.panel.hidden = false;
  go(state.step);
  renderOpener();
}

function close() {
  leave();
  state.open = false;
  ui.panel.hidden = true;
  watcher.disconnect();
  dock();
  bringBackSpeedup();
  renderOpener();
  ui.opener.focus({ preventScroll: true });
}

function next() {
  if (state.step < STEPS.length - 1) return go(state.step + 1);
  state.step = 0;
  storeStep();
  return close();
}

function go(step) {
  leave();
  state.step = step;
  storeStep();
  render();
  ui.panel.querySelector(".body").scrollTop = 0;
  ui.title.focus({ preventScroll: true });
  dock();
}

/** Ends what this step does and shows on the page; a run in progress goes on by itself. */
function leave() {
  state.showing = null;
  state.failure = null;
  onPage();
  ring([]);
  if (state.chose) live().release();
  state.chose = false;
}

async function show() {
  if (state.showing || !isIdle()) return;
  const { step } = state;
  const showing = (state.showing = {});
  state.failure = null;
  ring([]);
  leaveOutSpeedup();
  render();
  try {
    const shown = await STEPS[step].show((changed) => run(changed, showing));
    if (state.showing !== showing) return;
    state.shown.set(step, shown);
    point(shown);
  } catch (error) {
    if (error instanceof Left) return;
    state.failure = error.message;
  }
  state.showing = null;
  render();
}

/** Chooses the token a step speaks about, rings what is worth a look, and brings it into sight. */
function point(shown) {
  if (shown.choice) {
    live().choose(...shown.choice);
    state.chose = true;
  }
  const nodes = shown.rings();
  ring(nodes);
  if (nodes[0]) requestAnimationFrame(() => bring(nodes[0]));
}

window.addEventListener("specviz:run", onPage);
build();
