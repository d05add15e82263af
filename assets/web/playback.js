// Playback: a reader's place in a run, and the bar that moves it. Reads `state` and `ui` (rounds.js).
//
// A place is { round, stage }: of that round, the first `stage` stages have happened, and all rounds before it. A
// round's stages are its draft tokens one by one, the target pass, the decisions, and the target's own token. Only
// round 0 has a place with stage 0, the prompt alone. No place at all (null) is the end, and behind it a live run.

const SPEEDS = [0.5, 1, 2, 4, 8];
const UNITS = ["token", "decision", "round"];

/** How long a stage stays at speed 1, ms: a class reads the sentence, the teacher says a word. */
const DWELL = { draft: 800, pass: 1600, decide: 2600, next: 2600, missing: 800 };
const DWELL_ROUND = 2000; // ms, where a step is a whole round

const playback = { at: null, playing: false, speed: 1, unit: "token", timer: 0, frame: 0,
  sums: [], shown: null, unfolded: null, telling: false };

/** A new run: the reader follows it. */
function resetPlayback() {
  pause();
  Object.assign(playback, { at: null, unfolded: null });
  forgetDrawn();
}

/** The text is about to be drawn from its beginning. */
function forgetDrawn() {
  Object.assign(playback, { sums: [{ accepted: 0, judged: 0, holes: 0 }], shown: null });
}

// --- stages of a round -------------------------------------------------------------------------------------------------

/** What happens in a round, in order: { kind, index }; index is the token a stage is about. */
function stagesOf(round) {
  if (!round) return [{ kind: "missing", index: "next" }];
  const drafts = round.drafted.map((_, index) => ({ kind: "draft", index }));
  const pass = { kind: "pass", index: round.drafted.length ? 0 : "next" };
  return [...drafts, pass, ...decisionsOf(round), { kind: "next", index: "next" }];
}

/**
 * Tokens are judged depth by depth, siblings in the order tried. Block verification weighs the whole chain, and typical
 * acceptance holds all tokens against their thresholds and then takes the longest path: each is one decision.
 */
function decisionsOf(round) {
  const judged = round.drafted.flatMap((token, index) => (token.outcome === "discarded" ? [] : [index]));
  if (!judged.length) return [];
  if (!isBlock() && !isLossy(round)) {
    judged.sort((a, b) => depthOf(round, a) - depthOf(round, b) || a - b);
    return judged.map((index) => ({ kind: "decide", index }));
  }
  const refused = round.drafted.findIndex((token) => token.outcome === "rejected");
  return [{ kind: "decide", index: refused < 0 ? judged.at(-1) : refused, whole: true }];
}

/** What is known of a round at a place in it: how many tokens are drafted, whose verdicts are out, and the rest. */
function knownAt(index, stage) {
  const round = state.rounds[index];
  const stages = stagesOf(round);
  const done = stages.slice(0, stage);
  const decisions = stages.filter(({ kind }) => kind === "decide");
  const decided = done.filter(({ kind }) => kind === "decide");
  const complete = stage === stages.length;
  const all = decided.length === decisions.length && done.some(({ kind }) => kind === "pass");
  return {
    stage: done.at(-1) ?? null, // the one a reader looks at; null before the first
    number: done.filter(({ kind }) => kind === done.at(-1)?.kind).length,
    of: stages.filter(({ kind }) => kind === done.at(-1)?.kind).length,
    drafted: done.filter(({ kind }) => kind === "draft").length,
    passed: done.some(({ kind }) => kind === "pass"),
    judged: all ? null : new Set(decided.map(({ index: i }) => i)), // null: every verdict is out
    complete,
  };
}

/** "unborn", "drafted", "passed" (p is known, the verdict is not) or null, where nothing is left to come. */
function pendingOf(known, index) {
  if (index === "next") return known.complete ? null : "unborn";
  if (index >= known.drafted) return "unborn";
  if (!known.judged || known.judged.has(index)) return null;
  return known.passed ? "passed" : "drafted";
}

/** How many of a round's emitted tokens stand in the text. */
function committedIn(index, known) {
  const round = state.rounds[index];
  if (!round) return known.complete ? 1 : 0; // the mark that stands for it
  if (known.complete) return round.emitted.length;
  const accepted = acceptedIndexes(round).filter((i) => known.passed && (!known.judged || known.judged.has(i)));
  return Math.min(accepted.length, round.emitted.length);
}

// --- moving ------------------------------------------------------------------------------------------------------------

const START = Object.freeze({ round: 0, stage: 0 });
const endOf = (index) => ({ round: index, stage: stagesOf(state.rounds[index]).length });
const lastPlace = () => (state.drawn ? endOf(state.drawn - 1) : START);
const samePlace = (a, b) => a === b || (a !== null && b !== null && a.round === b.round && a.stage === b.stage);

/** Whether nothing is left to play: the end of what has arrived. */
const atEnd = () => playback.at === null || samePlace(playback.at, lastPlace());

function stops(stage) {
  if (playback.unit === "token") return true;
  return playback.unit === "round" ? ["next", "missing"].includes(stage.kind) : stage.kind !== "draft";
}

function placeAfter({ round, stage }) {
  for (;;) {
    if (stage === endOf(round).stage) [round, stage] = [round + 1, 0];
    if (round >= state.drawn) return null;
    stage += 1;
    if (stops(stagesOf(state.rounds[round])[stage - 1])) return { round, stage };
  }
}

function placeBefore({ round, stage }) {
  for (;;) {
    stage -= 1;
    if (stage < 1 && round === 0) return START;
    if (stage < 1) ({ round, stage } = endOf(round - 1));
    if (stops(stagesOf(state.rounds[round])[stage - 1])) return { round, stage };
  }
}

/** Goes to a place, null being the end, at most once a frame. */
function moveTo(at) {
  playback.at = at;
  if (!playback.frame) playback.frame = requestAnimationFrame(() => {
    playback.frame = 0;
    showPlace();
  });
}

function step(direction) {
  if (!state.drawn) return;
  pause();
  playback.telling = playback.unit !== "round";
  if (direction < 0) moveTo(placeBefore(playback.at ?? lastPlace()));
  else if (playback.at) moveTo(placeAfter(playback.at));
}

function goToStart() {
  if (!state.drawn) return;
  pause();
  moveTo(START);
}

function goToEnd() {
  pause();
  moveTo(null);
}

/** The bar's slider counts rounds that are over; its right end is the newest, which a live run leaves behind. */
function goToRound(count) {
  pause();
  playback.telling = false;
  if (count >= state.drawn && state.phase === "running") moveTo(null);
  else moveTo(count < 1 ? START : endOf(Math.min(count, state.drawn) - 1));
}

/** Plays, from the start if nothing is left; of a run that is followed live, it holds the place. */
function togglePlay() {
  if (!state.drawn) return;
  if (playback.playing) pause();
  else if (playback.at === null && state.phase === "running") moveTo(lastPlace());
  else {
    if (atEnd() && state.phase !== "running") moveTo(START);
    playback.playing = true;
    playback.telling = playback.unit !== "round";
    awaitNext();
  }
  drawTransport();
}

function pause() {
  clearTimeout(playback.timer);
  playback.playing = false;
}

function awaitNext() {
  const at = playback.at ?? lastPlace();
  const kind = at.stage ? stagesOf(state.rounds[at.round])[at.stage - 1].kind : "draft";
  playback.timer = setTimeout(playOn, (playback.unit === "round" ? DWELL_ROUND : DWELL[kind]) / playback.speed);
}

function playOn() {
  const next = placeAfter(playback.at);
  if (next) awaitNext();
  else pause();
  // At the end of a finished run the last stage stays; behind a live one its reader has caught up.
  if (next || state.phase === "running") moveTo(next);
  else drawTransport();
}

// --- what a place shows ------------------------------------------------------------------------------------------------

/** Brings text, list, inspector, figures and bar to the reader's place; touches only what differs from the last one. */
function showPlace() {
  const { at } = playback;
  unfoldHere();
  showText();
  dressRows();
  if (at) {
    follow();
    const spot = spotOf(at);
    if (spot) choose(spot, { pin: state.pinned && ui.view.dataset.layout === "narrow" });
    else letChoiceGo();
  } else {
    ui.followText.jump();
    ui.followRounds.jump();
    lookAgain();
    renderInspector();
  }
  drawFigures();
  drawTransport();
  drawPresentation();
}

/** The token that a place is about. */
function spotOf({ round, stage }) {
  if (!stage || !state.rounds[round]) return null;
  return { round, index: stagesOf(state.rounds[round])[stage - 1].index };
}

function letChoiceGo() {
  clearMarks();
  state.chosen = null;
  renderInspector();
}

/** Text up to here: { round, count }: all tokens of the rounds before, and so many of this one. */
function frontier() {
  const { at } = playback;
  if (!at) return { round: state.drawn, count: 0 };
  return { round: at.round, count: committedIn(at.round, knownAt(at.round, at.stage)) };
}

/** Later tokens keep their places, unseen: nothing moves. Only those between the last place and this one are touched. */
function showText() {
  const now = frontier();
  const before = playback.shown ?? { round: state.drawn, count: 0 };
  const first = Math.min(now.round, before.round);
  const last = Math.min(Math.max(now.round, before.round), state.drawn - 1);
  for (let index = first; index <= last; index += 1) hideLater(index, now);
  playback.shown = playback.at && now;
}

function hideLater(index, now = playback.shown) {
  if (!now) return;
  state.spans[index].forEach((span, k) => span.classList.toggle("later", index > now.round || (index === now.round && k >= now.count)));
}

/** For each new round of the text: its place before or after the reader's, and the counts up to its end. */
function noteRound(index) {
  if (playback.at) hideLater(index);
  const round = state.rounds[index];
  const before = playback.sums[index];
  playback.sums[index + 1] = {
    accepted: before.accepted + (round ? acceptedIndexes(round).length : 0),
    judged: before.judged + (round ? round.drafted.filter((token) => token.outcome !== "discarded").length : 0),
    holes: before.holes + (round ? 0 : 1),
  };
}

/**
 * The headline figures at the reader's place, by the definitions of specviz/metrics.py, over the rounds that are over.
 * Speeds are of the whole run: clocks were read once, at its own pace.
 */
function figuresHere() {
  const { at } = playback;
  if (!at) return state.figures;
  const over = at.stage === endOf(at.round).stage ? at.round + 1 : at.round;
  const { accepted, judged, holes } = playback.sums[over] ?? playback.sums.at(-1);
  const known = holes === 0;
  return {
    ...state.figures,
    acceptance_length: known && over ? 1 + accepted / over : null,
    acceptance_rate: known && judged ? accepted / judged : null,
  };
}

const OF_PLACE = ["acceptance_length", "acceptance_rate"];

/** Says beside each figure what it is of, while that is not plain. */
function markFigures() {
  for (const [name, node] of Object.entries(ui.figures)) {
    const scope = OF_PLACE.includes(name) ? "playback.so_far" : state.phase === "running" ? "playback.live_figure" : "playback.whole_run";
    if (playback.at) node.parentNode.dataset.scope = say(scope);
    else delete node.parentNode.dataset.scope;
  }
}

/**
 * A tree is told branch by branch, so it unfolds while its round is told, and folds again behind the reader. Who goes
 * by whole rounds is not told.
 */
function unfoldHere() {
  const { at, unfolded } = playback;
  const index = at && at.stage > 0 && state.rounds[at.round] && isTree(state.rounds[at.round]) ? at.round : null;
  if (unfolded !== null && unfolded !== index) {
    playback.unfolded = null;
    setOpen(unfolded, false);
  }
  if (index === null || state.opened.has(index) || (at.stage === endOf(index).stage && !playback.telling)) return;
  playback.unfolded = index;
  setOpen(index, true);
}

function dressRows() {
  for (const chunk of state.chunks) {
    if (!chunk.built) continue;
    for (const row of chunk.box.children) dressed(row);
  }
}

/** A row of the list as the reader's place shows it: hidden while it is to come, told up to its stage while it is on. */
function dressed(row) {
  const { at } = playback;
  const index = Number(row.dataset.round ?? row.dataset.missing);
  const here = at !== null && index === at.round && at.stage > 0;
  row.classList.toggle("later", at !== null && !here && index >= at.round);
  if (!here && !row.classList.contains("now")) return row;
  row.classList.toggle("now", here);
  if (state.rounds[index]) tell(row, index, here ? knownAt(index, at.stage) : null);
  return row;
}

/** Seals what is still to come in the chips and branches of `box`; known null breaks all seals. */
function tell(box, index, known) {
  box.classList.toggle("staged", known !== null && !known.complete);
  box.classList.toggle("passing", known?.stage?.kind === "pass");
  box.classList.toggle("drafting", known !== null && known.drafted < state.rounds[index].drafted.length);
  for (const button of box.querySelectorAll(".chip")) seal(button, state.rounds[index], known);
  for (const line of box.querySelectorAll(".branches path")) {
    line.dataset.pending = (known && pendingOf(known, indexOf(line))) ?? "no";
  }
}

const indexOf = (node) => (node.dataset.index === "next" ? "next" : Number(node.dataset.index));

/** A sealed chip keeps its size and shows, in place of the verdict, the numbers known so far. */
function seal(button, round, known) {
  const index = indexOf(button);
  const pending = known ? pendingOf(known, index) : null;
  const now = known?.stage;
  const landing = now && !pending && (now.whole ? index !== "next" : now.index === index);
  button.classList.toggle("landing", Boolean(landing) && ["decide", "next"].includes(now.kind));
  button.verdict ??= button.getAttribute("aria-label");
  if (!pending) {
    delete button.dataset.pending;
    button.setAttribute("aria-label", button.verdict);
    return;
  }
  button.dataset.pending = pending;
  if (index === "next") return; // unborn until the end
  button.setAttribute("aria-label", say(`playback.chip_${pending === "passed" ? "passed" : "drafted"}`, { token: quoted(round.drafted[index].text) }));
  const numbers = button.querySelector(".sealed") ?? button.appendChild(make("span", { class: "m sealed" }));
  numbers.replaceChildren(...knownNumbers(round.drafted[index], pending));
}

/** q once drafted, p once the target has looked; of a greedy round, whose p is 0 or 1, the models' own. */
function knownNumbers(token, pending) {
  const raw = isGreedy(token);
  const q = raw ? token.q_raw : token.q;
  const parts = q === null ? [] : [make("span", { class: "q", text: `q ${brief(q)}` })];
  if (pending === "passed") parts.push(make("span", { class: "p", text: `p ${brief(raw ? token.p_raw : token.p)}` }));
  return parts.flatMap((part, i) => (i ? [" ", part] : [part]));
}

const ABOVE = 96; // px of the list left above the row that is told: the round before it

/**
 * Text and list stay at the reader's place, whatever arrives behind it. Everything is built first, then measured, then
 * scrolled: a layout a frame.
 */
function follow() {
  const { at, shown } = playback;
  ui.followText.hold();
  ui.followRounds.hold();
  const word = (shown.count ? state.spans[shown.round][shown.count - 1] : state.spans[shown.round - 1]?.at(-1)) ?? ui.prompt;
  const row = at.stage ? rowHere(at.round) : null;
  const down = scrollFor(ui.text, word);
  const off = row ? row.getBoundingClientRect().top - ui.rounds.getBoundingClientRect().top : 0;
  if (down) ui.text.scrollTop += down;
  // The row stands near the top of the list, where the bar above it is, and stays there through its round.
  if (!row) ui.rounds.scrollTop = 0;
  else if (off < 0 || off > 2 * ABOVE) ui.rounds.scrollTop += off - ABOVE;
  showSpot(at);
}

/** The row of a round, built with the block before it: filled only when it comes near, that one would push it away. */
function rowHere(index) {
  const { box } = chunkOf(index);
  for (const near of [box.previousSibling?.chunk, box.chunk]) if (near && !near.built) fill(near);
  return box.querySelector(".now") ?? box.querySelector(`[data-missing="${index}"]`);
}

/** A block of rows that are all to come is not built: nobody could see it. */
const isLater = (chunk) => playback.at !== null && chunk.first > playback.at.round;

/** Blocks that were in sight, and not built because they were to come, are looked at anew. */
function lookAgain() {
  for (const { box, built } of state.chunks) {
    if (built) continue;
    ui.watcher.unobserve(box);
    ui.watcher.observe(box);
  }
}

/** How far to scroll so that a word comes into the box, with a line to spare; its last line counts. */
function scrollFor(box, node) {
  const area = box.getBoundingClientRect();
  const at = [...node.getClientRects()].at(-1);
  if (!at) return 0;
  if (at.bottom > area.bottom) return at.bottom - area.bottom + 2 * at.height;
  return at.top < area.top ? at.top - area.top - 2 * at.height : 0;
}

/** In a deep tree: the chip of the stage comes into its box. */
function showSpot(at) {
  const spot = spotOf(at);
  const button = spot && chipAt(spot.round, spot.index);
  if (button) showInTree(button);
}

// --- what is said about a place ----------------------------------------------------------------------------------------

/** Where the reader is, in a few words: "Round 3 of 31: draft token 2 of 4, ‹ dragon›". */
function placeLabel() {
  const { at } = playback;
  const count = state.drawn;
  if (!count) return say("playback.nothing");
  if (!at) return say(state.phase === "running" ? "playback.at_live" : "playback.at_end", { n: count });
  if (!at.stage) return say("playback.at_start", { n: count });
  const known = knownAt(at.round, at.stage);
  return say(stageKey("place", at.round, known), { round: at.round + 1, count, ...stageValues(at.round, known) });
}

/** The text about a stage: PREFIX_draft, _pass, _plain_pass, _accepted, _rejected, _whole, _recovered, _bonus, _plain, _missing. */
function stageKey(prefix, index, { stage }) {
  const round = state.rounds[index];
  const words = {
    missing: () => "missing",
    draft: () => "draft",
    pass: () => (round.drafted.length ? "pass" : "plain_pass"),
    decide: () => (stage.whole ? "whole" : round.drafted[stage.index].outcome),
    next: () => nextKind(round),
  };
  return `playback.${prefix}_${words[stage.kind]()}`;
}

function stageValues(index, { stage, number, of }) {
  const round = state.rounds[index];
  if (!round) return {};
  const token = stage.index === "next" ? round.next : round.drafted[stage.index];
  return { token: quoted(token.text), number, of, n: round.drafted.length, kept: acceptedIndexes(round).length };
}

/** What happened at a spot as far as the reader's place knows; later than that it is `sentence` (inspector.js). */
function sentenceHere(spot) {
  const known = playback.at && knownAt(playback.at.round, playback.at.stage);
  const round = state.rounds[spot.round];
  const pending = sealedAt(spot);
  if (!pending) return sentence(round, spot.index);
  if (spot.index === "next") return say(known.stage?.kind === "pass" ? "playback.say_plain_pass" : "playback.say_unborn");
  const token = round.drafted[spot.index];
  const values = { token: quoted(token.text), q: numberOr(isGreedy(token) ? token.q_raw : token.q), p: numberOr(isGreedy(token) ? token.p_raw : token.p) };
  if (pending === "unborn") return say("playback.say_unborn");
  const drafted = say(`playback.say_draft${isGreedy(token) ? (token.q_raw === null ? "_copy" : "_greedy") : token.q === 1 ? "_sure" : ""}`, values);
  if (pending === "drafted") return drafted;
  const opening = known.stage.kind === "pass" ? `${say("playback.say_pass", { n: round.drafted.length })} ` : "";
  return `${opening}${say(isGreedy(token) ? "playback.say_passed_greedy" : "playback.say_passed", values)}`;
}

const numberOr = (x) => (x === null ? "–" : plainNumber(x));

/** What the reader's place still seals of a spot: "unborn", "drafted", "passed", or null. */
function sealedAt(spot) {
  const { at } = playback;
  if (!at || spot.round !== at.round || !state.rounds[spot.round]) return null;
  return pendingOf(knownAt(at.round, at.stage), spot.index);
}

/** The inspector, while the verdict on its token is still to come; returns whether it was. */
function renderSealed() {
  const { chosen } = state;
  const pending = chosen && sealedAt(chosen);
  if (!pending) return false;
  const round = state.rounds[chosen.round];
  ui.title.textContent = placeLabel();
  const seen = pending === "passed" || (chosen.index === "next" && knownAt(playback.at.round, playback.at.stage).passed);
  ui.body.replaceChildren(make("p", { class: "say", part: "say", text: sentenceHere(chosen) }),
    ...(seen ? distribution(round, chosen.index) : []));
  return true;
}

// --- the bar -----------------------------------------------------------------------------------------------------------

const icon = (name) => make("span", { class: `icon ${name}`, "aria-hidden": "true" });

function transportCard() {
  const button = (name, click, keys, ...sign) => make("button", { type: "button", class: `go ${name}`, part: name,
    "aria-label": say(`playback.${name}`), title: say(`playback.${name}`), "aria-keyshortcuts": keys, on: { click } }, ...sign);
  ui.toStart = button("to_start", goToStart, "Home", icon("start"));
  ui.back = button("back", () => step(-1), "ArrowLeft", icon("back"));
  ui.play = button("play", togglePlay, "Space");
  ui.forward = button("forward", () => step(1), "ArrowRight", icon("forward"));
  ui.toEnd = make("button", { type: "button", class: "go live", part: "to_end", "aria-keyshortcuts": "End", on: { click: goToEnd } });
  ui.scrub = make("input", { class: "scrub", type: "range", part: "scrub", min: "0", max: "0", step: "1", value: "0",
    "aria-label": say("playback.scrub"), on: { input: () => goToRound(Number(ui.scrub.value)) } });
  ui.place = make("span", { class: "place", part: "place", "aria-live": "polite" });
  ui.present = make("button", { type: "button", class: "go present", part: "present", "aria-keyshortcuts": "p", text: say("playback.present"), on: { click: openPresentation } });
  ui.transport = make("div", { class: "card transport", part: "transport", role: "group", "aria-label": say("playback.bar") },
    make("div", { class: "buttons" }, ui.toStart, ui.back, ui.play, ui.forward), ui.scrub, ui.toEnd,
    ui.present,
    ui.place, make("div", { class: "choices" }, unitChoice(), speedChoice()));
  return ui.transport;
}

function unitChoice() {
  const options = UNITS.map((unit) => make("option", { value: unit, text: say(`playback.unit_${unit}`) }));
  const choice = make("select", { part: "unit", "aria-label": say("playback.unit"), on: { change: () => { playback.unit = choice.value; } } }, ...options);
  return choice;
}

function speedChoice() {
  const options = SPEEDS.map((speed) => make("option", { value: speed, selected: speed === 1, text: `${speed}×` }));
  const choice = make("select", { part: "speed", "aria-label": say("playback.speed"), on: { change: () => { playback.speed = Number(choice.value); } } }, ...options);
  return choice;
}

function drawTransport() {
  const count = state.drawn;
  const live = state.phase === "running";
  const following = playback.at === null;
  ui.view.toggleAttribute("data-placed", !following);
  ui.scrub.disabled = !count;
  // Not `disabled`: a button that was just pressed would lose the focus.
  for (const node of [ui.toStart, ui.back, ui.play, ui.present]) node.setAttribute("aria-disabled", String(!count));
  for (const node of [ui.forward, ui.toEnd]) node.setAttribute("aria-disabled", String(!count || following));
  const moving = playback.playing || (following && live);
  ui.play.dataset.icon = moving ? "pause" : "play";
  ui.play.setAttribute("aria-label", say(moving ? "playback.pause" : "playback.play"));
  ui.play.title = say(moving ? "playback.pause" : "playback.play");
  ui.scrub.max = count;
  ui.scrub.value = playback.at ? placeRounds() : count;
  ui.scrub.style.setProperty("--done", `${count ? (100 * ui.scrub.value) / count : 0}%`);
  ui.toEnd.dataset.live = live ? (following ? "on" : "behind") : "over";
  setText(ui.toEnd, say(live ? (following ? "playback.live" : "playback.go_live") : "playback.to_end"));
  const label = placeLabel();
  setText(ui.place, label);
  ui.scrub.setAttribute("aria-valuetext", label);
  // Read aloud step by step, but not while it plays or grows by itself.
  ui.place.setAttribute("aria-live", moving ? "off" : "polite");
  markFigures();
}

const placeRounds = () => (playback.at.stage ? playback.at.round + 1 : 0);

/** After each drawing: what arrived goes behind the reader's place. */
function drawPlayback() {
  if (playback.at && playback.shown === null) showPlace(); // drawn anew
  if (playback.at) {
    ui.followText.hold();
    ui.followRounds.hold();
  }
  drawTransport();
  drawPresentation();
}

// --- keys --------------------------------------------------------------------------------------------------------------

const KEYS = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: goToStart, End: goToEnd, " ": togglePlay, p: openPresentation };

/** Keys act wherever focus is in the view, except where they already mean something: in a field, a button, the list. */
function onPlaybackKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (!Object.hasOwn(KEYS, event.key)) return;
  const node = event.target;
  if (node.matches("select") || (node === ui.scrub && ![" ", "p"].includes(event.key))) return;
  if (node.matches("button") && event.key === " ") return; // presses it
  if (ui.rounds.contains(node) && node.matches("button") && event.key !== "p") return;
  event.preventDefault();
  KEYS[event.key]();
}

function startPlayback() {
  buildPresentation();
  shadow.addEventListener("keydown", onPlaybackKey);
  Object.defineProperties(host.specviz, {
    place: { get: () => playback.at && { ...playback.at, kind: knownAt(playback.at.round, playback.at.stage).stage?.kind ?? "start" } },
    playing: { get: () => playback.playing },
  });
}
