// <specviz-lossless>: counts of emitted pairs beside the target's exact distribution, as they come in, and the verdict on
// the rule.
//
// Takes the messages of specviz/views/lossless_messages.py: `trial` holds all that is shown; `phase` and `error` come in
// between. Fires `specviz-tried` with a trial that is over, and `specviz-lab` with the rule that the page's address names.
// Its getters show what it holds.

import { bringIntoSight, make, setText, svg } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { fixed, formatted, written } from "../shared/numbers.js";

const CHART = { height: 330, left: 46, right: 24, top: 28, bottom: 38 };
const NARROW = 760; // px: below this the chart stands above the bars
/** @type {Record<string, string>} */
const SIGNS = { same: "✓", different: "✗", near: "~", undecided: "–", pending: "" };

const sheets = [await sheet(new URL("lossless.css", import.meta.url))];

class SpecvizLossless extends SpecvizElement {
  static sheets = sheets;
  static measures = true;

  /** @type {any} the last trial, those that are over, and the width drawn for */
  held = { message: null, history: [], width: 0 };
  /** @type {any} the nodes drawn into */
  ui = {};

  get state() { return this.held.message?.phase ?? "empty"; }
  get trial() { return this.held.message; }
  get history() { return this.held.history; }

  get handlers() {
    return {
      phase: (message) => {
        this.open("running", message.text, message.fraction);
      },
      error: (message) => {
        this.open("failed", "", 0);
        this.ui.empty.classList.toggle("hidden", this.held.message !== null);
        setText(this.ui.note, message.text);
        this.ui.note.classList.remove("hidden");
      },
      trial: (message) => {
        this.held.message = message;
        this.open(message.phase, message.text, message.fraction);
        this.ui.results.classList.remove("hidden");
        this.renderVerdict();
        for (const card of [this.ui.chart, this.ui.bars, this.ui.facts]) card.classList.toggle("hidden", Boolean(message.greedy));
        this.ui.texts.classList.toggle("hidden", !message.greedy);
        if (message.greedy) this.renderTexts();
        else {
          this.renderChart();
          this.renderBars();
          this.renderFacts();
        }
        if (message.phase === "running") return;
        this.remember(message);
        this.tell("specviz-tried", message);
      },
    };
  }

  build() {
    const rule = new URLSearchParams(location.search).get("lab");
    if (rule !== null) this.tell("specviz-lab", { rule });
    this.ui.text = make("div", { class: "says", role: "status", part: "status" });
    this.ui.bar = make("i");
    this.ui.track = make("div", { class: "track", role: "progressbar", "aria-label": this.say("lossless.progress"), "aria-valuemin": "0", "aria-valuemax": "100" }, this.ui.bar);
    this.ui.note = make("p", { class: "note hidden", role: "alert", part: "note" });
    this.ui.progress = make("section", { class: "card progress hidden" }, this.ui.text, this.ui.track, this.ui.note);
    this.ui.results = make("div", { class: "results hidden", part: "results" }, this.verdictCard(), this.chartCard(), this.barsCard(), this.textsCard(), this.factsCard());
    this.ui.history = this.historyCard();
    this.ui.empty = this.emptyCard();
    this.ui.view = make("div", { class: "view", part: "view", "data-state": "empty" }, this.ui.progress, this.ui.results, this.ui.empty, this.ui.history);
    this.shadow.append(this.ui.view);
    new ResizeObserver(([entry]) => this.fit(Math.round(entry.contentRect.width))).observe(this.ui.view);
  }

  fit(width) {
    if (width === this.held.width) return;
    this.held.width = width;
    this.ui.view.dataset.layout = width < NARROW ? "narrow" : "wide";
    if (this.held.message && !this.held.message.greedy) this.renderChart();
  }

  emptyCard() {
    const step = (number, name) => make("li", {}, make("b", { "aria-hidden": "true", text: String(number) }),
      make("h4", { text: this.say(`lossless.empty_${name}`) }), make("p", { text: this.say(`lossless.empty_${name}_text`) }));
    return make("section", { class: "card empty", part: "empty" },
      make("h3", { class: "big", text: this.say("lossless.empty_title") }),
      make("p", { class: "lead", text: this.say("lossless.empty_promise") }),
      make("ol", { class: "steps" }, step(1, "exact"), step(2, "runs"), step(3, "verdict")),
      make("p", { class: "soft", text: this.say("lossless.empty_break") }));
  }

  verdictCard() {
    this.ui.sign = make("span", { class: "sign", "aria-hidden": "true" });
    this.ui.headline = make("h3", { class: "big", part: "headline" });
    this.ui.sentence = make("p", { class: "lead", part: "sentence" });
    this.ui.why = make("p", { class: "why", part: "why" });
    this.ui.asked = make("p", { class: "soft asked", part: "asked" });
    this.ui.about = make("p", { class: "about" });
    this.ui.verdict = make("section", { class: "card verdict", part: "verdict", "aria-live": "polite" },
      this.ui.asked, this.ui.about, make("div", { class: "spoken" }, this.ui.sign, make("div", {}, this.ui.headline, this.ui.sentence, this.ui.why)));
    return this.ui.verdict;
  }

  chartCard() {
    this.ui.svg = svg("svg", { role: "img", "aria-label": this.say("lossless.chart_label") });
    this.ui.chart = make("section", { class: "card chart", part: "chart" },
      make("h3", { text: this.say("lossless.chart_title") }),
      this.legend(["line", "chart_measured"], ["band", "chart_noise"]),
      make("div", { class: "plot" }, this.ui.svg),
      make("p", { class: "soft", text: this.say("lossless.chart_read") }));
    return this.ui.chart;
  }

  barsCard() {
    this.ui.rows = make("div", { class: "rows", role: "list" });
    this.ui.bars = make("section", { class: "card bars", part: "bars" },
      make("h3", { text: this.say("lossless.bars_title") }),
      this.legend(["exact", "bars_exact"], ["observed", "bars_observed"], ["whisker", "bars_noise"]), this.ui.rows);
    return this.ui.bars;
  }

  legend(...entries) {
    return make("p", { class: "legend" }, ...entries.map(([kind, key]) => make("span", {}, make("i", { class: `key ${kind}`, "aria-hidden": "true" }), this.say(`lossless.${key}`))));
  }

  textsCard() {
    const lane = (name) => {
      const text = make("p", { class: "text", part: `text-${name}` });
      return [text, make("div", { class: "lane" }, make("h4", { text: this.say(`lossless.texts_${name}`) }), text)];
    };
    const [plain, plainLane] = lane("plain");
    const [rule, ruleLane] = lane("rule");
    Object.assign(this.ui, { plain, rule });
    this.ui.texts = make("section", { class: "card texts" }, plainLane, ruleLane);
    return this.ui.texts;
  }

  factsCard() {
    this.ui.list = make("dl", { class: "facts" });
    this.ui.facts = make("section", { class: "card" }, make("h3", { text: this.say("lossless.facts_title") }), this.ui.list);
    return this.ui.facts;
  }

  historyCard() {
    const heads = ["rule", "drafter", "runs", "distance", "p", "verdict"];
    this.ui.tests = make("tbody");
    const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col", "data-column": name, text: this.say(`lossless.history_${name}`) })));
    return make("section", { class: "card history hidden", part: "history" }, make("h3", { text: this.say("lossless.history_title") }),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.say("lossless.history_title") },
        make("table", {}, make("thead", {}, head), this.ui.tests)));
  }

  open(phase, text, fraction = 0) {
    this.ui.empty.classList.add("hidden");
    this.ui.progress.classList.remove("hidden");
    this.ui.note.classList.add("hidden");
    if (phase === "running" && this.ui.view.dataset.state !== phase) bringIntoSight(this);
    this.ui.view.dataset.state = phase;
    setText(this.ui.text, text);
    this.ui.bar.style.width = `${100 * Math.min(1, fraction)}%`;
    this.ui.track.setAttribute("aria-valuenow", String(Math.round(100 * fraction)));
  }

  renderVerdict() {
    const { verdict, rule_name, drafter, settings, about } = this.held.message;
    this.ui.verdict.dataset.verdict = verdict.state;
    setText(this.ui.sign, SIGNS[verdict.state]);
    setText(this.ui.headline, verdict.headline);
    setText(this.ui.sentence, verdict.sentence);
    setText(this.ui.why, verdict.why);
    this.ui.asked.replaceChildren(make("b", { text: rule_name }), ` · ${drafter} · ${settings}`);
    setText(this.ui.about, about);
  }

  renderChart() {
    const width = this.ui.svg.parentElement.clientWidth;
    if (!width) return; // another tab is open: it is drawn once this one has a size
    const { noise, curve, runs, verdict } = this.held.message;
    const { height, left, right, top, bottom } = CHART;
    const least = Math.min(...noise.map(([, , low]) => low).filter((low) => low > 0), ...curve.map(([, tv]) => tv).filter((tv) => tv > 0), 0.1);
    const floor = decades(least, 1)[0];
    const xs = [noise[0][0], runs].map(Math.log10);
    const x = (n) => left + ((Math.log10(n) - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
    const y = (tv) => top + (Math.log10(1 / Math.max(tv, floor)) / Math.log10(1 / floor)) * (height - top - bottom);
    const path = (points) => points.map(([n, tv], i) => `${i ? "L" : "M"}${x(n).toFixed(1)} ${y(tv).toFixed(1)}`).join("");
    const parts = [];
    for (const tick of decades(floor, 1)) {
      parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
      parts.push(svg("text", { class: "tick", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, written(String(tick))));
    }
    for (const tick of decades(noise[0][0], runs).filter((n) => n >= noise[0][0] && n <= runs)) {
      parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }));
      parts.push(svg("text", { class: "tick", x: x(tick), y: height - bottom + 17, "text-anchor": "middle" }, grouped(tick)));
    }
    parts.push(svg("text", { class: "axis", x: width - right, y: height - 5, "text-anchor": "end" }, this.say("lossless.chart_x")));
    parts.push(svg("text", { class: "axis", x: 2, y: 14 }, this.say("lossless.chart_y")));
    const upper = noise.map(([n, , , high]) => [n, high]);
    const lower = noise.map(([n, , low]) => [n, low]).reverse();
    parts.push(svg("path", { class: "band", d: `${path(upper)}${path(lower).replace("M", "L")}Z` }));
    parts.push(svg("path", { class: "mean", d: path(noise) }));
    if (curve.length) {
      parts.push(svg("path", { class: "curve", d: path(curve) }));
      const [n, tv] = curve.at(-1);
      parts.push(svg("circle", { class: "end", cx: x(n), cy: y(tv), r: 4.5 }));
    }
    this.ui.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.ui.svg.setAttribute("data-verdict", verdict.state);
    this.ui.svg.replaceChildren(...parts);
  }

  renderBars() {
    const { bars, n } = this.held.message;
    const widest = Math.max(...bars.filter(({ kind }) => kind === "outcome").map(({ p, share, noise }) => Math.max(p + noise, share))) || 1;
    const at = (value) => `${(100 * Math.min(1, Math.max(0, value) / widest)).toFixed(2)}%`;
    while (this.ui.rows.children.length > bars.length) this.ui.rows.lastChild.remove();
    while (this.ui.rows.children.length < bars.length) this.ui.rows.append(emptyRow());
    bars.forEach((bar, i) => {
      const row = this.ui.rows.children[i];
      const [pair, track, figures] = row.children;
      const [exact, observed, whisker] = track.children;
      const name = this.barName(bar);
      if (pair.title !== name) {
        pair.title = name;
        pair.replaceChildren(...(bar.kind === "outcome" ? bar.texts.map((text) => make("bdi", { text: visible(text) })) : [name]));
      }
      row.dataset.kind = bar.kind;
      row.dataset.off = String(n > 0 && Math.abs(bar.share - bar.p) > bar.noise + 1e-9);
      row.setAttribute("aria-label", this.say("lossless.bars_row", { pair: name, p: percent(bar.p), share: percent(bar.share) }));
      // Of all the others together there are figures only: beside them no pair's bar could be told from another.
      exact.style.width = at(bar.p);
      observed.style.width = at(bar.share);
      whisker.style.left = at(bar.p - bar.noise);
      whisker.style.width = `calc(${at(bar.p + bar.noise)} - ${at(bar.p - bar.noise)})`;
      whisker.classList.toggle("hidden", !bar.noise);
      setText(figures.children[0], percent(bar.p));
      setText(figures.children[1], n ? percent(bar.share) : "");
    });
  }

  barName({ kind, texts }) {
    if (kind === "outcome") return texts.map(visible).join(" ");
    return kind === "others" ? this.say("lossless.bars_others", { n: Number(texts[0]) }) : this.say("lossless.bars_outside");
  }

  renderFacts() {
    this.ui.list.replaceChildren(...this.held.message.facts.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]));
  }

  renderTexts() {
    const { plain, rule, parting } = this.held.message.greedy;
    const words = (tokens) => tokens.map((text, i) => (i === parting ? make("mark", { text: text.replaceAll("\n", "⏎") }) : text));
    this.ui.plain.replaceChildren(...words(plain));
    this.ui.rule.replaceChildren(...words(rule));
  }

  remember(message) {
    if (message.verdict.state === "pending" || this.held.history.some(({ trial }) => trial === message.trial)) return;
    this.held.history.push(message);
    const { rule_name, drafter, n, distance, p_value, verdict, greedy } = message;
    const cells = [drafter, greedy ? this.say("lossless.history_tokens", { n }) : grouped(n), figure(distance, (tv) => fixed(tv, 3)), figure(p_value, pText)];
    this.ui.tests.prepend(make("tr", { "data-verdict": verdict.state }, make("th", { scope: "row", text: rule_name }),
      ...cells.map((text) => make("td", { text })), make("td", { class: "short", text: this.say(`lossless.short_${verdict.state}`) })));
    this.ui.history.classList.toggle("hidden", false);
  }
}

const percent = (x) => `${fixed(100 * x, 1)}\u202f%`;

const grouped = (n) => n.toLocaleString("en").replaceAll(",", "\u202f"); // as the server writes it

const visible = (text) => text.replaceAll(" ", "\u00b7").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

/** Powers of ten around the values. */
function decades(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  return Array.from({ length: last - first + 1 }, (_, i) => Number(`1e${first + i}`));
}

function emptyRow() {
  return make("div", { class: "row", role: "listitem" }, make("span", { class: "pair" }),
    make("span", { class: "shares" }, make("i", { class: "exact" }), make("i", { class: "observed" }), make("i", { class: "whisker" })),
    make("span", { class: "numbers" }, make("span"), make("span")));
}

/** A dash where there is no such figure, as at temperature 0. */
const figure = (value, format) => (typeof value === "number" ? format(value) : "–");

const pText = (p) => (p < 1e-300 ? "< 1e-300" : formatted(p, p >= 0.1 ? ".2f" : ".1g")); // as in the sentences

customElements.define("specviz-lossless", SpecvizLossless);
