// <specviz-beside>: two runs on one prompt, side by side: the same position of their texts at the same height, and where
// they part.
//
// It follows the page's <specviz-run>, or takes { kind: "finished", run }, a finished run as that one tells it. Nothing
// is asked of anybody. Its getters show which runs it holds.

import { make } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { liveRun } from "../shared/live.js";
import { fixed } from "../shared/numbers.js";
import { quoted } from "../shared/tokens.js";
import { alignment, characters, lines } from "./alignment.js";

/** @type {Record<string, number>} */
const LINE = { wide: 42, narrow: 29 }; // characters of a line, about what there is room for
const WIDE = 640; // px from which the runs stand in two columns (beside.css)

const sheets = [await sheet(new URL("beside.css", import.meta.url))];

class SpecvizBeside extends SpecvizElement {
  static sheets = sheets;

  /** @type {any} finished runs: the last one, the kept one, and the one beside it */
  held = { last: null, kept: null, next: null, layout: "wide" };
  /** @type {any} the nodes drawn into */
  ui = {};

  get kept() { return this.held.kept?.run ?? null; }
  get next() { return this.held.next?.run ?? null; }
  get alignment() {
    const { kept, next } = this.held;
    if (!next || kept.start.prompt !== next.start.prompt) return null;
    const { common, first, equal } = alignment(kept, next);
    return { common, first, equal };
  }

  connected() {
    this.listen(document, "specviz-finished", (event) => this.receive({ kind: "finished", run: event.detail }));
    // The branch is to stand beside the run that it leaves.
    this.listen(document, "specviz-branch", () => this.built && this.keep(this.held.last));
  }

  get handlers() {
    return {
      finished: (message) => {
        this.take(message.run);
      },
    };
  }

  build() {
    this.ui.hint = make("p", { class: "hint", role: "status", part: "hint" });
    this.ui.keep = make("button", { type: "button", part: "keep", on: { click: () => this.keepThis() } });
    this.ui.letGo = make("button", { type: "button", part: "let-go", text: this.say("beside.let_go"), on: { click: () => this.letGo() } });
    this.ui.pair = make("div", { part: "pair" });
    const bar = make("div", { class: "bar" }, this.ui.keep, this.ui.letGo, this.ui.hint);
    this.ui.view = make("section", { class: "view", part: "view", "aria-label": this.say("beside.name") }, bar, this.ui.pair);
    this.shadow.append(this.ui.view);
    new ResizeObserver(([entry]) => this.fit(entry.contentRect.width)).observe(this.ui.view);
    const already = liveRun()?.finished;
    if (already) this.take(already); // it ended before this element was on the page
    this.render();
  }

  fit(width) {
    const layout = width >= WIDE ? "wide" : "narrow";
    if (!width || layout === this.held.layout) return; // width 0: a hidden tab
    this.held.layout = layout;
    this.render();
  }

  /** A run has ended, or its speedup came in. */
  take(run) {
    this.held.last = run;
    if (this.held.kept?.run === run.run) this.held.kept = run;
    else if (this.held.kept) this.held.next = run;
    this.render();
  }

  keep(run) {
    this.held.kept = run;
    this.held.next = null;
    this.render();
  }

  keepThis() {
    this.keep(this.held.next ?? this.held.last);
    this.ui.letGo.focus(); // its own button has gone
  }

  letGo() {
    this.keep(null);
    this.ui.keep.focus(); // its own button has gone
  }

  render() {
    const { last, kept, next } = this.held;
    this.ui.view.dataset.state = next ? "both" : kept ? "kept" : last ? "ready" : "empty";
    this.ui.keep.hidden = Boolean(kept) && !next;
    this.ui.keep.disabled = !last;
    this.ui.keep.textContent = next ? this.say("beside.keep_new") : this.say("beside.keep");
    this.ui.letGo.hidden = !kept;
    const hint = next ? "" : kept ? this.say("beside.kept", { run: this.settingsOf(kept) }) : last ? this.say("beside.invite") : this.say("beside.nothing");
    if (this.ui.hint.textContent !== hint) this.ui.hint.textContent = hint;
    this.ui.pair.replaceChildren(...(next ? [this.card(kept, next)] : []));
  }

  /** What there is to say about two runs on one prompt. */
  verdict(runA, runB, { a, b, common, first, equal }) {
    if (equal) {
      const [ofA, ofB] = [runA, runB].map((run) => run.rounds.length);
      const passes = ofA === ofB ? this.say("beside.same_passes", { n: ofA }) : this.say("beside.fewer_passes", { a: ofA, b: ofB });
      return `${this.say("beside.equal", { n: a.length })} ${passes}`;
    }
    const shared = characters(runA.text.slice(0, common));
    if (first[0] === a.length) return this.say("beside.shorter", { n: first[0], characters: shared, name: "A", token: quoted(this.say, b[first[1]].text) });
    if (first[1] === b.length) return this.say("beside.shorter", { n: first[0], characters: shared, name: "B", token: quoted(this.say, a[first[0]].text) });
    const values = { n: first[0], a: quoted(this.say, a[first[0]].text), b: quoted(this.say, b[first[1]].text), character: shared + 1 };
    return first[0] ? this.say("beside.part", values) : this.say("beside.part_at_once", values);
  }

  /**
   * Whether texts of the same models that part were to be expected; "" where there is nothing to explain.
   *
   * @returns {string}
   */
  reasonOf({ start: a }, { start: b }, { a: tokensA, b: tokensB, first, equal }) {
    const oneEnds = first[0] === tokensA.length || first[1] === tokensB.length;
    if (equal || oneEnds || a.pair !== b.pair) return "";
    if (a.coins !== b.coins) return this.say("beside.coins_part", { coins: b.coins || a.coins });
    if (a.greedy && b.greedy) return this.say("beside.greedy_part");
    if (a.greedy || b.greedy) return this.say("beside.one_greedy");
    const lossy = [a, b].some(({ lossy, drafter }) => lossy && drafter);
    return this.say(lossy ? "beside.sampled_lossy" : "beside.sampled");
  }

  /** One line: how a run was made. */
  settingsOf({ start }) {
    const way = start.drafter ? this.say("beside.drafted", { drafter: start.drafter, gamma: start.num_draft_tokens }) : this.say("beside.plain");
    return [way, start.settings].filter(Boolean).join(" · ");
  }

  card(a, b) {
    const aligned = a.start.prompt === b.start.prompt ? alignment(a, b) : null;
    const reason = aligned ? this.reasonOf(a, b, aligned) : "";
    const designed = reason && !(a.start.greedy && b.start.greedy);
    const sign = !aligned ? "⚠" : aligned.equal ? "=" : "≠";
    const kind = !aligned ? "other" : aligned.equal ? "equal" : designed ? "designed" : "parted";
    const text = aligned ? this.verdict(a, b, aligned) : this.say("beside.prompts_differ");
    const parts = [make("h3", { text: this.say("beside.title") }), make("p", { class: `verdict ${kind}`, part: "verdict", role: "status" }, make("b", { "aria-hidden": "true", text: sign }), make("span", { text })),
    ];
    if (reason) parts.push(make("p", { class: "reason", part: "reason", text: reason }));
    if (a.start.pair !== b.start.pair) parts.push(make("p", { class: "hint", part: "pairs", text: this.say(a.start.share?.pair && a.start.share.pair === b.start.share?.pair ? "beside.other_form" : "beside.other_pair", { a: a.start.pair, b: b.start.pair }) }));
    parts.push(make("div", { class: "columns heads" }, this.head("A", this.say("beside.kept_run"), a), this.head("B", this.say("beside.new_run"), b)));
    if (aligned) parts.push(this.texts(aligned), make("p", { class: "key", text: this.say("beside.key") }));
    return make("div", { class: "card", part: "card" }, ...parts);
  }

  head(name, what, run) {
    const { figures } = run;
    const known = (value, format) => (typeof value === "number" ? format(value) : this.say("beside.no_value"));
    const entry = (figure, text, label) => make("div", {}, make("b", { "data-figure": figure, text }), make("span", { text: label }));
    return make("div", { class: "head", part: `head-${name}` },
      make("p", { class: "who" }, make("b", { class: "name", text: name }), make("span", { text: what })),
      make("p", { class: "settings", part: "settings", text: this.settingsOf(run) }),
      make("div", { class: "figures" },
        entry("acceptance_rate", known(figures.acceptance_rate, (x) => `${Math.round(100 * x)}\u202f%`), this.say("beside.accepted")),
        entry("acceptance_length", known(figures.acceptance_length, (x) => fixed(x, 2)), this.say("beside.per_pass")),
        entry("target_passes", String(run.rounds.length), this.say("beside.passes", { n: run.rounds.length })),
        entry("tokens", known(figures.tokens, String), this.say("beside.tokens", { n: figures.tokens }))));
  }

  texts(aligned) {
    const box = make("div", { class: "texts", part: "texts", role: "region", tabindex: "0", "aria-label": this.say("beside.rows") });
    const made = lines(aligned, LINE[this.held.layout]);
    const parting = made.findIndex((line) => !line.same);
    const passes = [0, 0];
    made.forEach((line, place) => {
      if (place === 0 && line.same) box.append(border("=", this.say("beside.common"), "common"));
      if (place === parting) box.append(this.parted(aligned));
      const cells = line.sides.map((tokens, side) => {
        if (tokens.length) passes[side] = tokens.at(-1).round + 1;
        return this.cell("AB"[side], tokens, passes[side], place === parting);
      });
      box.append(make("div", { class: line.same ? "columns line same" : "columns line", part: "line" }, ...cells));
    });
    if (aligned.equal) box.append(border("■", this.say("beside.ends_both"), "common"));
    return box;
  }

  parted({ a, b, first }) {
    const over = first[0] === a.length ? "A" : first[1] === b.length ? "B" : null;
    return over ? border("■", this.say("beside.one_ends", { name: over }), "parting") : border("≠", this.say("beside.apart"), "parting");
  }

  cell(name, tokens, passes, marksFirst) {
    const words = tokens.map((token, place) => make("span", {
      class: `t ${token.kind}${token.starts ? " starts" : ""}${marksFirst && place === 0 ? " parts" : ""}`, "data-kind": token.kind, "data-round": token.round,
      title: token.starts ? this.say("beside.round_starts", { n: token.round + 1 }) : null, text: token.text,
    }));
    const count = tokens.length ? [make("span", { class: "count", title: this.say("beside.pass_title", { n: passes }), text: String(passes) })] : [];
    return make("div", { class: "cell", "data-side": name },
      make("b", { class: "name", "aria-hidden": "true", text: name }), make("span", { class: "words", dir: "auto", translate: "no" }, ...words), ...count);
  }
}

const border = (sign, text, kind) => make("p", { class: `border ${kind}`, part: `border-${kind}` }, make("b", { "aria-hidden": "true", text: sign }), make("span", { text }));

customElements.define("specviz-beside", SpecvizBeside);
