// <specviz-race>: plain and speculative decoding, both recorded beforehand, replayed on one clock.
//
// Takes the messages of specviz/ui/tabs/race.py: `race` holds both lanes; `phase`, `error` and `clear` come while the
// server measures. Fires `specviz-press` with { settings, press } for a race to be run. Its getters show what it holds, and
// `seek(seconds)` moves the clock.

import { bringIntoSight, make, scrolling, setText, wantsStillness } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { momentParts, momentStyle } from "../moment/moment.js";
import { fixed, rate } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";
import { raceScene } from "./still.js";

const SPEEDS = [1, 2, 5, 10, 20, 50]; // how many times slower than it really was
const COMFORTABLE = 8; // seconds a replay should about last when it starts by itself
const SMALL = 640; // px of width below which lanes stand one above the other
/** @type {Record<string, string>} */
const KIND = { a: "accepted", r: "recovered", b: "bonus", p: "plain" };
const LANES = ["plain", "speculative"];
const WINNERS = ["did_not_pay", "paid"]; // the verdicts that name them, lane by lane

const sheets = [await sheet(new URL("race.css", import.meta.url)), momentStyle];

class SpecvizRace extends SpecvizElement {
  static sheets = sheets;
  static measures = true;

  /** @type {any} what came, and where the clock stands */
  held = { phase: "empty", lanes: [], comparison: {}, passes: "plain", clock: 0, end: 0, slow: 1, playing: false, last: 0, over: false };
  /** @type {any} the nodes drawn into */
  ui = {};

  get state() { return this.held.phase; }
  get clock() { return this.held.clock; }
  get end() { return this.held.end; }
  get playing() { return this.held.playing; }
  get slow() { return this.held.slow; }
  get comparison() { return this.held.comparison; }
  get lanes() {
    return this.held.lanes.map((/** @type {any} */ lane) => (
      { tokens: lane.shown, passes: lane.passes, text: lane.pieces.slice(0, lane.shown).join(""), done: lane.done }));
  }

  get handlers() {
    return {
      clear: () => { this.show("empty"); },
      phase: (message) => {
        this.pause();
        if (this.held.phase !== "measuring" && this.ui.view.hasAttribute("data-small")) this.scrollIntoView({ block: "start", behavior: scrolling() });
        else if (this.held.phase !== "measuring") bringIntoSight(this);
        setText(this.ui.phaseText, message.text);
        this.ui.phaseBar.style.width = `${100 * (message.fraction ?? 0)}%`;
        this.show("measuring");
      },
      error: (message) => {
        setText(this.ui.note, message.text);
        this.show(this.held.lanes.length ? "race" : "empty");
        this.ui.note.classList.remove("hidden");
      },
      race: (message) => {
        this.held.comparison = message.comparison;
        this.held.over = false;
        Object.assign(this.held, { passes: message.passes, made: message.made ?? "" });
        this.held.lanes = message.lanes.map((lane) => ({ ...lane, starts: sums(lane.counts), shown: 0, passes: 0, done: false }));
        this.held.end = Math.max(...this.held.lanes.map((lane) => lane.times.at(-1) ?? 0));
        this.ui.lanes.forEach((lane, i) => {
          lane.prompt.textContent = message.prompt;
          lane.tokens.replaceChildren();
          setText(lane.subtitle, this.held.lanes[i].label ?? "");
        });
        setText(this.ui.of, this.say("race.of_time", { time: seconds(this.held.end) }));
        this.renderSummary();
        this.show("race");
        this.setSpeed(SPEEDS.find((slow) => this.held.end * slow >= COMFORTABLE * 0.6) ?? SPEEDS.at(-1));
        this.seek(wantsStillness() ? this.held.end : 0);
        if (this.ui.view.hasAttribute("data-small")) this.ui.stage.scrollIntoView({ block: "start", behavior: scrolling() });
        if (wantsStillness()) this.pause();
        else this.play();
      },
    };
  }

  build() {
    this.ui.empty = make("div", { class: "card empty" },
      make("p", { text: this.say("race.empty_what") }),
      make("p", { text: this.say("race.empty_then") }),
      make("button", { class: "play", type: "button", part: "start", text: this.say("race.start"), on: { click: () => this.tell("specviz-press", { settings: {}, press: "race" }) } }));
    this.ui.phaseText = make("div", { role: "status", "aria-live": "polite", part: "phase" });
    this.ui.phaseBar = make("i");
    this.ui.phase = make("div", { class: "card phase hidden" }, this.ui.phaseText, make("div", { class: "track", "aria-hidden": "true" }, this.ui.phaseBar));
    this.ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
    this.ui.stage = make("div", { class: "lanes hidden" });
    this.ui.lanes = LANES.map((key) => this.laneCard(key));
    this.ui.stage.append(...this.ui.lanes.map((lane) => lane.card));
    this.ui.controls = this.controlsCard();
    this.ui.summary = make("div", { class: "card summary hidden", part: "summary", role: "region", "aria-label": this.say("race.result") });
    this.ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, this.ui.empty, this.ui.note, this.ui.phase, this.ui.controls, this.ui.stage, this.ui.summary);
    this.shadow.append(this.ui.view);
    new ResizeObserver(([entry]) => this.fit(entry.contentRect.width)).observe(this.ui.view);
    this.pause();
  }

  fit(width) {
    if (width) this.ui.view.toggleAttribute("data-small", width < SMALL);
  }

  controlsCard() {
    this.ui.play = make("button", { class: "play", type: "button", part: "play", on: { click: () => this.toggle() } });
    const restart = make("button", { type: "button", part: "restart", text: this.say("race.restart"), on: { click: () => { this.seek(0); this.play(); } } });
    this.ui.speeds = SPEEDS.map((slow) => make("button", { type: "button", "data-slow": slow, text: slow === 1 ? this.say("race.real_speed") : this.say("race.slower", { times: slow }),
      on: { click: () => this.setSpeed(slow) } }));
    this.ui.clock = make("b", { part: "clock", text: seconds(0) });
    this.ui.of = make("span", { class: "quiet" });
    this.ui.seek = make("input", { class: "seek", type: "range", min: "0", max: "1000", step: "1", value: "0", part: "seek",
      "aria-label": this.say("race.position"), on: { input: () => { this.pause(); this.seek((this.held.end * this.ui.seek.value) / 1000); } } });
    return make("div", { class: "card hidden", part: "controls" },
      make("div", { class: "controls" }, this.ui.play, restart,
        make("div", { class: "speeds", role: "group", "aria-label": this.say("race.speed") }, ...this.ui.speeds),
        make("span", { class: "clock" }, this.ui.clock, this.ui.of)),
      make("div", { class: "along" }, this.ui.seek, ...momentParts(this.say, this, (sheet) => raceScene(this, sheet))));
  }

  laneCard(key) {
    const name = this.say(`race.${key}`);
    const lane = { counts: {} };
    const counters = make("div", { class: "counters" });
    for (const count of ["tokens", "target_passes", "seconds", "tokens_per_second"]) {
      lane.counts[count] = make("b", { "data-count": count, text: "0" });
      counters.append(make("div", {}, lane.counts[count], make("span", { text: this.say(`race.${count}`) })));
    }
    lane.crown = make("span", { class: "crown", part: "winner", text: this.say("race.faster") });
    lane.subtitle = make("span", { class: "quiet" });
    lane.bar = make("i");
    lane.prompt = make("span", { class: "prompt" });
    lane.tokens = make("span", { part: "tokens" });
    lane.text = make("div", { class: "text", part: "text", translate: "no", tabindex: "0", role: "region", "aria-label": this.say(`race.text_of_${key}`) }, lane.prompt, lane.tokens);
    lane.card = make("section", { class: "card lane", "data-lane": key, "aria-label": name },
      make("div", { class: "top" }, make("h3", { text: name }), lane.subtitle, lane.crown), counters,
      make("div", { class: "track", "aria-hidden": "true" }, lane.bar), lane.text);
    if (key === "speculative") lane.card.append(this.legend());
    else lane.card.append(make("div", { class: "legend" }, make("span", { text: this.say("race.plain_legend") })));
    return lane;
  }

  legend() {
    const entry = (symbol, kind) => make("span", {}, `${symbol} `, make("b", { class: kind, text: this.say(`common.${kind}`) }));
    return make("div", { class: "legend" }, entry("✓", "accepted"), entry("↻", "recovered"), entry("★", "bonus"), make("span", { text: `○ ${this.say("common.plain_step")}` }));
  }

  show(phase) {
    this.held.phase = phase;
    this.ui.view.dataset.state = phase;
    this.ui.empty.classList.toggle("hidden", phase !== "empty");
    this.ui.phase.classList.toggle("hidden", phase !== "measuring");
    this.ui.note.classList.add("hidden");
    for (const part of [this.ui.controls, this.ui.stage]) part.classList.toggle("hidden", phase !== "race");
    this.showResult();
  }

  /** Nobody learns who won before both lanes have been home once. */
  showResult() {
    this.held.over ||= this.held.lanes.length > 0 && this.held.lanes.every((lane) => lane.done);
    this.ui.summary.classList.toggle("hidden", this.held.phase !== "race" || !this.held.over);
  }

  play() {
    if (this.held.clock >= this.held.end) this.seek(0);
    setText(this.ui.play, this.say("race.pause"));
    if (this.held.playing) return;
    this.held.playing = true;
    this.held.last = performance.now();
    requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    this.held.playing = false;
    setText(this.ui.play, this.held.clock >= this.held.end ? this.say("race.again") : this.say("race.play"));
  }

  toggle() {
    if (this.held.playing) this.pause();
    else this.play();
  }

  tick(now) {
    if (!this.held.playing) return;
    // A tab that was in the background goes on where it was, instead of leaping.
    const passed = Math.min(0.25, Math.max(0, (now - this.held.last) / 1000));
    this.held.last = now;
    this.seek(this.held.clock + passed / this.held.slow);
    if (this.held.clock >= this.held.end) this.pause();
    else requestAnimationFrame((next) => this.tick(next));
  }

  setSpeed(slow) {
    this.held.slow = slow;
    for (const button of this.ui.speeds) button.setAttribute("aria-pressed", String(Number(button.dataset.slow) === slow));
  }

  /** Stands still where another, with the same race, stands. */
  goOnFrom(other) {
    this.pause();
    this.setSpeed(other.slow);
    this.held.over = other.held.over;
    this.seek(other.clock);
    this.pause();
  }

  /** Shows the race as it stood `time` seconds after the start. */
  seek(time) {
    this.held.clock = Math.min(Math.max(time, 0), this.held.end);
    setText(this.ui.clock, seconds(this.held.clock));
    if (this.shadow.activeElement !== this.ui.seek) this.ui.seek.value = String(this.held.end ? (1000 * this.held.clock) / this.held.end : 0);
    this.ui.seek.setAttribute("aria-valuetext", seconds(this.held.clock));
    this.held.lanes.forEach((lane, i) => this.drawLane(lane, this.ui.lanes[i]));
    this.drawWinner();
    this.showResult();
  }

  /** How far a lane is at a time of the clock. */
  stand(lane, time) {
    const passes = roundsBy(lane.times, time);
    const [tokens, done] = [lane.starts[passes], passes === lane.times.length];
    const elapsed = Math.min(time, lane.times.at(-1) ?? 0);
    return { passes, tokens, done, elapsed, speed: done ? lane.tokens_per_second : elapsed > 0 ? tokens / elapsed : null };
  }

  drawLane(lane, view) {
    const { passes, tokens, done, elapsed, speed } = this.stand(lane, this.held.clock);
    Object.assign(lane, { passes, done });
    this.growText(lane, view, tokens);
    setText(view.counts.tokens, String(tokens));
    setText(view.counts.target_passes, String(passes));
    setText(view.counts.seconds, seconds(elapsed));
    setText(view.counts.tokens_per_second, speed === null ? "—" : rate(speed));
    view.bar.style.width = `${lane.tokens ? (100 * tokens) / lane.tokens : 0}%`;
  }

  growText(lane, view, count) {
    if (count === lane.shown) return;
    while (view.tokens.childElementCount > count) view.tokens.lastChild.remove();
    const more = document.createDocumentFragment();
    for (let i = view.tokens.childElementCount; i < count; i += 1) {
      const parting = this.held.comparison.parting?.position === i ? " parting" : "";
      more.append(make("span", { class: `t ${KIND[lane.sources[i]]}${parting}`, "data-kind": KIND[lane.sources[i]], text: lane.pieces[i] }));
    }
    view.tokens.append(more);
    lane.shown = count;
    view.text.scrollTop = view.text.scrollHeight;
  }

  /** The mark goes by the measured speedup, if that tells; it shows once that lane is home. */
  drawWinner() {
    if (!this.held.lanes.length) return;
    this.ui.lanes.forEach((view, i) => view.crown.toggleAttribute("data-on", i === this.winner && this.held.lanes[i].done));
  }

  /** The faster lane, -1 where none was. */
  get winner() { return WINNERS.indexOf(this.verdict()); }

  /** Whether speculation paid off, as far as its interval tells; files of earlier versions have none. */
  verdict() {
    const { speedup, low = speedup, high = speedup } = this.held.comparison;
    if (typeof speedup !== "number") return "unknown";
    if (low < 1 && high > 1) return "too_close";
    return speedup >= 1 ? "paid" : "did_not_pay";
  }

  renderSummary() {
    const [plain, speculative] = this.held.lanes;
    const { speedup } = this.held.comparison;
    const big = make("div", { class: "speedup" }, make("b", { part: "speedup", "data-figure": "speedup", text: typeof speedup === "number" ? `${fixed(speedup, 2)}×` : "—" }),
      make("span", { class: "quiet", text: this.say("race.speedup") }), make("span", { class: "quiet", "data-figure": "interval", text: this.interval("race.interval") }));
    const verdicts = make("div", { class: "verdicts" }, ...this.verdictLines(plain, speculative).map((text) => make("p", { text })));
    if (this.held.comparison.parting) verdicts.append(make("button", { type: "button", part: "show-parting", text: this.say("race.show_parting"), on: { click: () => this.showParting() } }));
    this.ui.summary.replaceChildren(big, verdicts, this.resultTable());
  }

  /** The ends of the speedup's interval in a sentence; nothing for files of earlier versions, which have none. */
  interval(key) {
    const { low, high } = this.held.comparison;
    return typeof low === "number" && typeof high === "number" ? this.say(key, { low: fixed(low, 2), high: fixed(high, 2) }) : "";
  }

  verdictLines(plain, speculative) {
    const { speedup, busy } = this.held.comparison;
    const lines = [];
    if (this.verdict() === "unknown") {
      lines.push(this.interval("race.unknown") || this.say("race.too_short"));
    } else {
      const figures = { speedup: fixed(speedup, 2), fast: rate(speculative.tokens_per_second), slow: rate(plain.tokens_per_second) };
      lines.push(this.say(`race.${this.verdict()}`, figures));
      if (busy) lines.push(this.say("common.busy"));
    }
    lines.push(this.say("race.needed", { n: speculative.target_passes, tokens: this.say("common.tokens", { n: speculative.tokens }),
      plain_passes: plain.target_passes, plain_tokens: plain.tokens }));
    lines.push(this.say("race.both_took", { passes: this.say(`passes.${this.held.passes}`) }));
    lines.push(this.sameness());
    return lines;
  }

  sameness() {
    const { greedy, identical, parting } = this.held.comparison;
    if (!greedy) return this.say("race.sampled");
    if (identical) return this.say("race.identical");
    if (!parting || parting.margin === null) return this.say("race.not_identical");
    const where = this.say("race.parting", { place: parting.position + 1, plain: quoted(this.say, parting.plain), speculative: quoted(this.say, parting.speculative),
      margin: Number(parting.margin.toPrecision(2)) });
    return `${where} ${parting.half_precision ? this.say("race.half_precision") : this.say("race.full_precision")}`;
  }

  /** Stops the clock when both lanes have the token at which they part, and brings it into view. */
  showParting() {
    const { position } = this.held.comparison.parting;
    this.pause();
    this.seek(Math.max(...this.held.lanes.map((lane) => lane.times[lane.starts.findIndex((tokens) => tokens > position) - 1] ?? this.held.end)));
    for (const lane of this.ui.lanes) {
      const token = lane.tokens.children[position];
      if (token) lane.text.scrollTop += token.getBoundingClientRect().top - lane.text.getBoundingClientRect().top - lane.text.clientHeight / 2;
    }
    this.ui.stage.scrollIntoView({ block: "nearest", behavior: scrolling() });
  }

  resultTable() {
    const row = (tag, ...cells) => make("tr", {}, ...cells.map((text) => make(tag, { text, scope: tag === "th" ? "col" : null })));
    const line = (name, lane) => row("td", name, String(lane.tokens), String(lane.target_passes), lane.target_passes ? fixed(lane.tokens / lane.target_passes, 2) : "—",
      seconds(lane.times.at(-1) ?? 0), lane.tokens_per_second === null ? "—" : rate(lane.tokens_per_second));
    return make("table", { part: "table" },
      make("thead", {}, row("th", "", ...["tokens", "target_passes", "per_pass", "time", "tokens_per_second"].map((key) => this.say(`race.${key}`)))),
      make("tbody", {}, ...this.held.lanes.map((lane, i) => line(this.say(`race.${LANES[i]}_short`), lane))));
  }
}

const seconds = (x) => `${fixed(x, 2)}\u202fs`;

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

customElements.define("specviz-race", SpecvizRace);
