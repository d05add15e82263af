// <specviz-compare>: a table of contestants that sorts, a heat map of their speedups, and two rules on the same draws.
//
// Takes the messages of specviz/views/tab_messages.py: `contest` and `replay` hold all that their part shows, and `verdict`
// (specviz/ui/advice.py) whether it pays; `contest_phase` and errors come in between. Its getters show what it holds.

import { bringIntoSight, make, scrolling, setText } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { fixed, written } from "../shared/numbers.js";
import { tint } from "../shared/tint.js";
import { quoted } from "../shared/tokens.js";
import { COLUMNS, NAMING, RANKING, byLength } from "./columns.js";
import { DASH, isNumber, percent, rate, short, times, visible } from "./figures.js";
import { winnerParts } from "./use.js";
import { verdictParts } from "./verdict.js";

const RULES = ["compare.rule_token", "compare.rule_block"];

const sheets = [await sheet(new URL("compare.css", import.meta.url))];

/** Whether it was measured, and is slower than plain decoding. */
const loses = ({ figures }) => isNumber(figures?.speedup_measured) && figures.speedup_measured < 1;

class SpecvizCompare extends SpecvizElement {
  static sheets = sheets;
  static measures = true;

  /** @type {any} the last message of each part, how the table is sorted, and whether those that lose are shown */
  held = { contest: null, replay: null, verdict: null, sort: null, unfolded: false };
  /** @type {any} the nodes drawn into */
  ui = {};

  get state() { return this.held.contest?.phase ?? "empty"; }
  get rows() { return this.held.contest?.rows ?? []; }
  get texts() { return this.held.contest?.texts ?? null; }
  get replay() { return this.held.replay; }
  get verdict() { return this.held.verdict; }

  get handlers() {
    return {
      contest: (message) => {
        this.held.contest = message;
        // Ranked, once all is measured, unless the visitor sorted otherwise.
        if (["finished", "stopped"].includes(message.phase)) this.held.sort ??= { column: RANKING, down: true };
        this.open(this.ui.contest, this.ui.contestProgress, message.phase, message.text, message.fraction);
        this.renderTexts();
        this.ui.winner.replaceChildren(...winnerParts(this, message));
        this.renderTable();
        this.renderMap();
        this.renderDomains(message.domains ?? []);
      },
      contest_phase: (message) => {
        this.open(this.ui.contest, this.ui.contestProgress, "running", message.text, message.fraction);
      },
      contest_error: (message) => { this.fail(this.ui.contest, this.ui.contestProgress, message.text); },
      verdict: (message) => {
        this.held.verdict = message;
        this.open(this.ui.verdict, this.ui.verdictProgress, message.phase, message.text, message.fraction);
        this.ui.told.replaceChildren(...verdictParts(this, message));
      },
      verdict_error: (message) => { this.fail(this.ui.verdict, this.ui.verdictProgress, message.text); },
      replay: (message) => {
        this.held.replay = message;
        this.open(this.ui.replay, this.ui.replayProgress, message.phase, message.text, message.fraction);
        this.renderReplay();
      },
      replay_error: (message) => { this.fail(this.ui.replay, this.ui.replayProgress, message.text); },
    };
  }

  build() {
    this.ui.empty = make("div", { class: "card empty", part: "empty" },
      make("p", { text: this.say("advice.about_button") }),
      make("p", { text: this.say("compare.empty_compare") }),
      make("p", { text: this.say("compare.empty_two_rules") }));
    this.ui.contest = this.contestSection();
    this.ui.replay = this.replaySection();
    this.ui.verdict = this.verdictSection();
    this.ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, this.ui.empty, this.ui.verdict, this.ui.contest, this.ui.replay);
    this.shadow.append(this.ui.view);
  }

  progress(name) {
    const text = make("div", { class: "says", role: "status", "aria-live": "polite", part: `${name}-status` });
    const bar = make("i");
    const track = make("div", { class: "track", role: "progressbar", "aria-label": this.say("compare.share_done"), "aria-valuemin": "0", "aria-valuemax": "100" }, bar);
    const note = make("p", { class: "note hidden", role: "alert", part: `${name}-note` });
    return { text, bar, track, note };
  }

  contestSection() {
    this.ui.contestProgress = this.progress("contest");
    this.ui.texts = make("p", { class: "verdict hidden", part: "texts" });
    this.ui.winner = make("p", { class: "winner", part: "winner" });
    this.ui.heads = COLUMNS.map((column) => {
      const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
      const button = make("button", { type: "button", "data-sort": column.key, title: column.hint && this.say(`compare.hint_${column.key}`), on: { click: () => this.sortBy(column) } },
        this.say(`compare.column_${column.key}`), arrow);
      return make("th", { scope: "col", "data-column": column.key, class: column.words ? "words" : "", "aria-sort": "none" }, button);
    });
    this.ui.body = make("tbody");
    this.ui.table = make("table", { class: "standings", part: "table", "aria-label": this.say("compare.contestants") },
      make("thead", {}, make("tr", {}, ...this.ui.heads)), this.ui.body);
    this.ui.map = make("div", { part: "map" });
    this.ui.domains = make("div", { class: "card hidden" });
    const { text, track, note } = this.ui.contestProgress;
    return make("section", { class: "contest hidden", "aria-label": this.say("compare.comparison") },
      make("div", { class: "card" }, make("h3", { text: this.say("compare.measured") }), text, track, note, this.ui.winner, this.ui.texts,
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.say("compare.table") }, this.ui.table)),
      this.ui.domains,
      make("div", { class: "card mapcard" }, make("h3", { text: this.say("compare.map_title") }),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.say("compare.map") }, this.ui.map), this.scale()));
  }

  scale() {
    const steps = [0.5, 0.75, 1, 1.5, 2, 2.5].map((speedup) => make("span", { style: tint(speedup), text: `${written(String(speedup))}×` }));
    return make("div", { class: "scale" }, make("span", { class: "quiet", text: this.say("compare.scale_slower") }), ...steps, make("span", { class: "quiet", text: this.say("compare.scale_faster") }),
      make("span", { class: "quiet", text: this.say("compare.scale_best") }));
  }

  verdictSection() {
    this.ui.told = make("div", { part: "verdict" });
    return this.section("verdict", this.say("advice.go"), this.ui.told);
  }

  replaySection() {
    this.ui.totals = make("div", { part: "totals" });
    this.ui.differing = make("div", { class: "differing", part: "differing" });
    return this.section("replay", this.say("compare.two_rules"), this.ui.totals, this.ui.differing);
  }

  section(name, title, ...body) {
    const { text, track, note } = (this.ui[`${name}Progress`] = this.progress(name));
    return make("section", { class: "card hidden", "aria-label": title }, make("h3", { text: title }), text, track, note, ...body);
  }

  open(section, parts, phase, text, fraction = 0) {
    this.ui.empty.classList.add("hidden");
    section.classList.remove("hidden");
    // What was started last stands first: the other one may be long.
    const begins = phase === "running" && section.dataset.phase !== "running";
    if (begins) this.ui.view.prepend(section);
    const ends = phase !== "running" && section.dataset.phase === "running";
    section.dataset.phase = phase;
    parts.note.classList.add("hidden");
    setText(parts.text, text);
    parts.bar.style.width = `${100 * fraction}%`;
    parts.track.setAttribute("aria-valuenow", String(Math.round(100 * fraction)));
    parts.track.classList.toggle("idle", phase !== "running");
    if (begins) bringIntoSight(this);
    // What was waited for is to be read: in a low or narrow window all but its first lines would be below the edge.
    if (ends && this.getBoundingClientRect().top > window.innerHeight / 2) this.scrollIntoView({ block: "start", behavior: scrolling() });
  }

  fail(section, parts, text) {
    this.open(section, parts, "failed", "", 0);
    setText(parts.note, text);
    parts.note.classList.remove("hidden");
  }

  sortBy(column) {
    const again = this.held.sort?.column === column;
    this.held.sort = { column, down: again ? !this.held.sort.down : !column.words };
    this.renderTable();
  }

  /** Sorts as another table is sorted. */
  sortAs(other) {
    this.held.sort = other.held.sort;
    this.renderTable();
  }

  /** The rows in the order asked for; what is not known yet comes last either way. */
  sorted(rows) {
    if (!this.held.sort) return rows;
    const { column, down } = this.held.sort;
    const known = rows.filter((row) => column.value(row) !== null);
    const unknown = rows.filter((row) => column.value(row) === null);
    const order = (a, b) => (column.words ? a.localeCompare(b) : a - b);
    known.sort((a, b) => (down ? -1 : 1) * order(column.value(a), column.value(b)));
    return [...known, ...unknown];
  }

  renderTable() {
    const { rows } = this.held.contest;
    COLUMNS.forEach((column, i) => {
      const head = this.ui.heads[i];
      const active = this.held.sort?.column === column;
      head.setAttribute("aria-sort", active ? (this.held.sort.down ? "descending" : "ascending") : "none");
      setText(head.querySelector(".arrow"), active ? (this.held.sort.down ? " ↓" : " ↑") : "");
    });
    const sorted = this.sorted(rows);
    const losing = this.held.contest.phase === "running" ? [] : sorted.filter(loses);
    const [folded, ran, out] = [losing.length > 1 ? losing : [], sorted.filter((row) => !row.reason), sorted.filter((row) => row.reason)];
    const drawn = (/** @type {any[]} */ some) => some.map((row) => this.tableRow(row));
    this.ui.body.replaceChildren(...drawn(ran.filter((row) => !folded.includes(row))),
      ...(folded.length ? [this.foldRow(folded.length)] : []), ...drawn(this.held.unfolded ? folded : []), ...drawn(out));
  }

  /** One line for all that are slower than plain decoding; they unfold below it. */
  foldRow(n) {
    const { unfolded } = this.held;
    const unfold = () => {
      this.held.unfolded = !unfolded;
      this.renderTable();
      this.ui.body.querySelector(".fold").focus();
    };
    const button = make("button", { type: "button", class: "fold", "aria-expanded": String(unfolded), text: this.say("compare.below", { n }), on: { click: unfold } });
    return make("tr", {}, make("td", { colspan: COLUMNS.length, class: "words" }, button));
  }

  tableRow(row) {
    const told = row.reason ? COLUMNS.filter(({ key }) => NAMING.includes(key)) : COLUMNS;
    const cells = told.map((column) => {
      const cell = make(column.key === "drafter" ? "th" : "td", { scope: column.key === "drafter" ? "row" : null, "data-column": column.key, class: column.words ? "words" : "", text: column.text(row, this.say) });
      if (column.key === "drafter" && row.best) cell.prepend(make("b", { class: "star", text: "★ ", title: this.say("compare.best") }));
      cell.append(...this.smallPrint(column.key, row));
      return cell;
    });
    if (row.reason) cells.push(make("td", { class: "reason", colspan: COLUMNS.length - told.length, text: row.reason }));
    return make("tr", { "data-best": row.best, "data-lossy": row.lossless === false, "data-pending": !row.figures }, ...cells);
  }

  /** Below the drafter, its parameters and the rule; below a figure, its interval, or the least and the most over several repeats; a lossy
      rule's distance. */
  smallPrint(key, { rule, parameters, figures, repeats, branches, usual_branches: own }) {
    if (key === "drafter") return [parameters, rule].filter(Boolean).map((text) => make("small", { text }));
    if (key === "branches" && branches) return branches === 1 ? [this.small("compare.chain")] : own ? [this.small("compare.own_branches")] : [];
    if (!figures) return [];
    const range = (format, values) => (values ? [make("small", { text: values.map(format).join("–") })] : []);
    if (key === "speedup") return range((x) => fixed(x, 2), figures.speedup_interval);
    if (key === "tokens_per_second") return range(rate, repeats > 1 ? figures.spread : null);
    return key === "lossless" && isNumber(figures.distance) ? [make("small", { text: this.say("compare.off", { distance: fixed(figures.distance, 2) }) })] : [];
  }

  small(key) { return make("small", { text: this.say(key) }); }

  renderMap() {
    const rows = this.held.contest.rows.filter((row) => row.num_draft_tokens !== null);
    const gammas = [...new Set(rows.map((row) => row.num_draft_tokens))].sort((a, b) => Number(byLength(a)) - Number(byLength(b)));
    const names = new Map();
    for (const row of rows) {
      const name = this.mapName(row, rows);
      if (!names.has(name)) names.set(name, new Map());
      names.get(name).set(row.num_draft_tokens, row);
    }
    const head = make("tr", {}, make("td"), ...gammas.map((gamma) => make("th", { scope: "col", text: this.say("compare.gamma", { gamma }) })));
    const body = [...names].map(([name, cells]) => make("tr", {}, make("th", { scope: "row", text: name }), ...gammas.map((gamma) => this.mapCell(cells.get(gamma)))));
    this.ui.map.replaceChildren(make("table", { class: "map", "aria-label": this.say("compare.map_title") }, make("thead", {}, head), make("tbody", {}, ...body)));
  }

  /** The drafter; branches wherever there are several, and with parameters and rule where rows of the same drafter differ
      in them. */
  mapName(row, rows) {
    const own = rows.filter((other) => other.drafter === row.drafter);
    const parts = [row.drafter];
    if (row.branches > 1) parts.push(this.say("compare.branches", { n: row.branches }));
    else if (new Set(own.map((other) => other.branches)).size > 1) parts.push(this.say("compare.chain"));
    if (new Set(own.map((other) => other.parameters)).size > 1 && row.parameters) parts.push(row.parameters);
    if (new Set(own.filter((other) => other.branches === row.branches).map((other) => other.rule)).size > 1) parts.push(row.rule);
    return parts.join(", ");
  }

  mapCell(row) {
    if (row?.reason) return make("td", { class: "unknown reason", text: row.reason });
    const speedup = row?.figures?.speedup_measured;
    if (!isNumber(speedup)) return make("td", { class: "unknown", text: row ? DASH : "" });
    return make("td", { style: tint(speedup), "data-best": row.best, text: `${row.best ? "★ " : ""}${times(speedup)}` });
  }

  /** A table of texts with its head, of prompts of one's own; nothing where there are none. */
  renderDomains([head, ...rows]) {
    this.ui.domains.classList.toggle("hidden", !head);
    if (!head) return;
    const line = (texts, tag) => make("tr", {}, ...texts.map((text, i) => make(tag, { scope: tag === "th" ? "col" : null, class: i < 2 ? "words" : "", text })));
    const table = make("table", { class: "standings", part: "domains" }, make("thead", {}, line(head, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td"))));
    this.ui.domains.replaceChildren(make("h3", { text: this.say("compare.by_domain") }),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.say("compare.by_domain") }, table));
  }

  renderTexts() {
    const { texts } = this.held.contest;
    this.ui.texts.classList.toggle("hidden", !texts);
    if (!texts) return;
    const partings = texts.partings.map((one) => this.partingText(one));
    const same = texts.of - partings.length;
    const summary = partings.length
      ? this.say("compare.some_same", { n: texts.of, same })
      : this.say("compare.all_same", { n: texts.of });
    this.ui.texts.replaceChildren(summary, ...partings.map((text) => make("span", { class: "parting", text })));
  }

  partingText({ name, position, plain, speculative, margin, half_precision }) {
    const reason = half_precision ? this.say("compare.half_precision") : this.say("compare.full_precision");
    const known = { name, place: position + 1, speculative: quoted(this.say, speculative), plain: quoted(this.say, plain), reason };
    return isNumber(margin) ? this.say("compare.parting_margin", { ...known, margin: Number(margin.toPrecision(2)) }) : this.say("compare.parting", known);
  }

  renderReplay() {
    const { rounds, drafted, kept, ahead, behind, phase, differing } = this.held.replay;
    const row = (name, count) => make("tr", {}, make("th", { scope: "row", text: name }), make("td", { text: String(count) }),
      make("td", { text: drafted ? percent(count / drafted) : DASH }), make("td", { text: rounds ? fixed(1 + count / rounds, 2) : DASH }));
    const table = make("table", { class: "rules", "aria-label": this.say("compare.kept_table") },
      make("thead", {}, make("tr", {}, ...["", this.say("compare.kept"), this.say("compare.of_drafted", { drafted }), this.say("compare.column_acceptance_length")].map((text) => make("th", { scope: "col", text })))),
      make("tbody", {}, ...RULES.map((name, i) => row(this.say(name), kept[i]))));
    this.ui.totals.replaceChildren(make("div", { class: "scroll" }, table), ...(phase === "running" ? [] : this.replayed(rounds, kept, ahead, behind).map((text) => make("p", { class: "verdict", text }))));
    this.ui.differing.replaceChildren(...differing.map((one) => this.differingRound(one)));
  }

  replayed(rounds, kept, ahead, behind) {
    const gain = kept[1] - kept[0];
    const key = gain === 0 ? "compare.verdict_same" : gain > 0 ? "compare.verdict_more" : "compare.verdict_fewer";
    return [
      this.say(key, { rounds: this.say("compare.rounds", { n: rounds }), tokens: this.say("common.tokens", { n: Math.abs(gain) }),
        ahead: this.say("compare.rounds", { n: ahead }), behind, proof: this.say("compare.proof") }),
      ahead + behind ? this.say("compare.same_text_differing") : this.say("compare.same_text"),
    ];
  }

  /** One round as a small table: the coins, what each rule holds against them, and what it keeps. */
  differingRound(round) {
    const tokens = round.drafted;
    const line = (name, cells, end) => make("tr", {}, make("th", { scope: "row", text: name }), ...cells, end);
    const judged = (rule, key) => line(this.say(RULES[rule]), tokens.map((token, i) => this.judgement(token[key], i, round.kept[rule], rule)), this.nextCell(round.next[rule]));
    const head = make("tr", {}, make("td", { class: "number", text: this.say("compare.round", { number: round.index + 1 }) }),
      ...tokens.map((token) => make("th", { scope: "col", dir: "auto", translate: "no", class: "token", text: visible(token.text) })), make("th", { scope: "col", text: this.say("compare.then") }));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.say("compare.round", { number: round.index + 1 }) },
      make("table", { class: "round", "data-round": round.index },
        make("thead", {}, head),
        make("tbody", {}, line(this.say("compare.coin"), tokens.map((token) => make("td", { text: short(token.u) })), make("td")), judged(0, "ratio"), judged(1, "h"))));
  }

  /** Token by token nothing is looked at after the first refusal; a block is weighed to its end. */
  judgement(threshold, place, kept, rule) {
    const outcome = place < kept ? "accepted" : place === kept || rule === 1 ? "rejected" : "discarded";
    const sign = { accepted: "✓", rejected: "✗", discarded: "┄" }[outcome];
    const name = rule ? "h" : "p/q";
    const said = outcome === "discarded" ? "┄" : `${sign} ${name} ${short(threshold)}`;
    return make("td", { class: outcome, "data-outcome": outcome, "aria-label": this.say("compare.judged", { outcome: this.say(`common.${outcome}`), name, value: short(threshold) }), text: said });
  }

  nextCell({ text, kind }) {
    return make("td", { class: `token ${kind}`, dir: "auto", translate: "no", "aria-label": this.say("compare.next", { kind: this.say(`common.${kind}`), text }), text: `${kind === "bonus" ? "★" : "↻"} ${visible(text)}` });
  }
}


customElements.define("specviz-compare", SpecvizCompare);
