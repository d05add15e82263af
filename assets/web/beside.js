// Two runs on one prompt, side by side: the same position of their texts at the same height, and where they part.
//
// The body of a gr.HTML component's js_on_load: `element` is given; dom.js and tokens.js stand in front. Runs come from
// the live view (rounds.js) as `specviz:run` events; nothing is asked of the server. Model text reaches the page through
// textContent alone.

const host = element.querySelector(".specviz-beside");
const shadow = host.attachShadow({ mode: "open" });

const LINE = { wide: 42, narrow: 29 }; // characters of a line, about what there is room for
const WIDE = 640; // px from which the runs stand in two columns (beside.css)

// --- two texts by position ----------------------------------------------------------------------------------------

/** The emitted tokens of a run, with where each ends in the text (in UTF-16 units) and the round that it came from. */
function tokensOf(run) {
  let end = 0;
  return run.rounds.flatMap((round) => {
    const accepted = round.drafted.filter((token) => token.outcome === "accepted").length;
    const last = round.drafted.length ? round.next.kind : "plain";
    return round.pieces.map((text, place) => ({
      text, id: round.emitted[place], end: (end += text.length), kind: place < accepted ? "accepted" : last,
      round: round.index, starts: place === 0,
    }));
  });
}

/** How many UTF-16 units both texts begin with alike; half a character counts for neither. */
function commonLength(a, b) {
  const most = Math.min(a.length, b.length);
  let length = 0;
  while (length < most && a[length] === b[length]) length += 1;
  const split = length > 0 && /[\ud800-\udbff]/.test(a[length - 1]);
  return split ? length - 1 : length;
}

/**
 * Where two runs on one prompt stand to each other: { a, b: their tokens, common: units they share, first: [of a, of b]
 * the index of the first token that reaches beyond them, equal }.
 */
function alignment(runA, runB) {
  const [a, b] = [tokensOf(runA), tokensOf(runB)];
  const common = commonLength(runA.text, runB.text);
  const first = [a, b].map((tokens) => {
    const place = tokens.findIndex((token) => token.end > common);
    return place < 0 ? tokens.length : place;
  });
  return { a, b, common, first, equal: runA.text === runB.text };
}

/** The pairs of token counts that stand at one position: after tokens that end together, then token by token. */
function stops({ a, b, first }) {
  const found = [];
  let j = 0;
  for (let i = 0; i < first[0]; i += 1) {
    while (j < first[1] && b[j].end < a[i].end) j += 1;
    if (j < first[1] && b[j].end === a[i].end) found.push([i + 1, (j += 1)]);
  }
  const last = found.at(-1);
  if (first[0] && !(last && last[0] === first[0] && last[1] === first[1])) found.push([...first]);
  const rest = Math.max(a.length - first[0], b.length - first[1]);
  for (let k = 1; k <= rest; k += 1) found.push([Math.min(first[0] + k, a.length), Math.min(first[1] + k, b.length)]);
  return found;
}

/** The lines: { sides: [a's tokens, b's tokens], same }, each up to `most` characters or to a line break. */
function lines(aligned, most) {
  const made = [];
  let from = [0, 0];
  let to = null;
  const close = () => {
    if (to) made.push({ sides: [aligned.a.slice(from[0], to[0]), aligned.b.slice(from[1], to[1])], same: from[0] < aligned.first[0] });
    from = to ?? from;
    to = null;
  };
  const size = (tokens) => tokens.reduce((sum, token) => sum + token.text.length, 0);
  const width = (stop) => Math.max(size(aligned.a.slice(from[0], stop[0])), size(aligned.b.slice(from[1], stop[1])));
  const broken = (stop) => [aligned.a[stop[0] - 1], aligned.b[stop[1] - 1]].some((token) => token?.text.endsWith("\n"));
  for (const stop of stops(aligned)) {
    if (to && width(stop) > most) close();
    to = stop;
    const parts = stop[0] === aligned.first[0] && stop[1] === aligned.first[1];
    if (parts || broken(stop)) close();
  }
  close();
  return made;
}

const characters = (text) => [...text].length;

/** What there is to say about two runs on one prompt. */
function verdict(runA, runB, { a, b, common, first, equal }) {
  if (equal) {
    const [ofA, ofB] = [runA, runB].map((run) => run.rounds.length);
    const passes = ofA === ofB ? say("beside.same_passes", { n: ofA }) : say("beside.fewer_passes", { a: ofA, b: ofB });
    return `${say("beside.equal", { n: a.length })} ${passes}`;
  }
  const shared = characters(runA.text.slice(0, common));
  if (first[0] === a.length) return say("beside.shorter", { n: first[0], characters: shared, name: "A", token: quoted(b[first[1]].text) });
  if (first[1] === b.length) return say("beside.shorter", { n: first[0], characters: shared, name: "B", token: quoted(a[first[0]].text) });
  const values = { n: first[0], a: quoted(a[first[0]].text), b: quoted(b[first[1]].text), character: shared + 1 };
  return first[0] ? say("beside.part", values) : say("beside.part_at_once", values);
}

// --- state ------------------------------------------------------------------------------------------------------------

const state = { last: null, kept: null, next: null, layout: "wide" }; // the runs are finished ones, as the live view tells them

/** For tests and the console. */
host.specviz = {
  get kept() { return state.kept?.run ?? null; },
  get next() { return state.next?.run ?? null; },
  get alignment() {
    if (!state.next || state.kept.start.prompt !== state.next.start.prompt) return null;
    const { common, first, equal } = alignment(state.kept, state.next);
    return { common, first, equal };
  },
};

/** A run has ended, or its speedup came in. */
function take(run) {
  state.last = run;
  if (state.kept?.run === run.run) state.kept = run;
  else if (state.kept) state.next = run;
  render();
}

function keep(run) {
  state.kept = run;
  state.next = null;
  render();
}

// --- drawing ----------------------------------------------------------------------------------------------------------

const ui = {};

function build() {
  ui.hint = make("p", { class: "hint", role: "status", part: "hint" });
  ui.keep = make("button", { type: "button", part: "keep", on: { click: keepThis } });
  ui.letGo = make("button", { type: "button", part: "let-go", text: say("beside.let_go"), on: { click: letGo } });
  ui.pair = make("div", { part: "pair" });
  const bar = make("div", { class: "bar" }, ui.keep, ui.letGo, ui.hint);
  ui.view = make("section", { class: "view", part: "view", "aria-label": say("beside.name") }, bar, ui.pair);
  shadow.append(make("style", { text: STYLE }), ui.view);
  render();
}

function keepThis() {
  keep(state.next ?? state.last);
  ui.letGo.focus(); // its own button has gone
}

function letGo() {
  keep(null);
  ui.keep.focus(); // its own button has gone
}

function render() {
  const { last, kept, next } = state;
  ui.view.dataset.state = next ? "both" : kept ? "kept" : last ? "ready" : "empty";
  ui.keep.hidden = Boolean(kept) && !next;
  ui.keep.disabled = !last;
  ui.keep.textContent = next ? say("beside.keep_new") : say("beside.keep");
  ui.letGo.hidden = !kept;
  const hint = next ? "" : kept ? say("beside.kept", { run: settingsOf(kept) }) : last ? say("beside.invite") : say("beside.nothing");
  if (ui.hint.textContent !== hint) ui.hint.textContent = hint;
  ui.pair.replaceChildren(...(next ? [card(kept, next)] : []));
}

/** One line: how a run was made. */
function settingsOf({ start }) {
  const way = start.drafter ? say("beside.drafted", { drafter: start.drafter, gamma: start.num_draft_tokens }) : say("beside.plain");
  return [way, start.settings].filter(Boolean).join(" · ");
}

function card(a, b) {
  const comparable = a.start.prompt === b.start.prompt;
  const aligned = comparable ? alignment(a, b) : null;
  const sign = !comparable ? "⚠" : aligned.equal ? "=" : "≠";
  const kind = !comparable ? "other" : aligned.equal ? "equal" : "parted";
  const text = comparable ? verdict(a, b, aligned) : say("beside.prompts_differ");
  const parts = [make("h3", { text: say("beside.title") }), make("p", { class: `verdict ${kind}`, part: "verdict", role: "status" }, make("b", { "aria-hidden": "true", text: sign }), make("span", { text })),
  ];
  if (a.start.pair !== b.start.pair) parts.push(make("p", { class: "hint", part: "pairs", text: say("beside.other_pair", { a: a.start.pair, b: b.start.pair }) }));
  parts.push(make("div", { class: "columns heads" }, head("A", say("beside.kept_run"), a), head("B", say("beside.new_run"), b)));
  if (comparable) parts.push(texts(aligned), make("p", { class: "key", text: say("beside.key") }));
  return make("div", { class: "card", part: "card" }, ...parts);
}

function head(name, what, run) {
  const { figures } = run;
  const known = (value, format) => (typeof value === "number" ? format(value) : say("beside.no_value"));
  const entry = (figure, text, label) => make("div", {}, make("b", { "data-figure": figure, text }), make("span", { text: label }));
  return make("div", { class: "head", part: `head-${name}` },
    make("p", { class: "who" }, make("b", { class: "name", text: name }), make("span", { text: what })),
    make("p", { class: "settings", part: "settings", text: settingsOf(run) }),
    make("div", { class: "figures" },
      entry("acceptance_rate", known(figures.acceptance_rate, (x) => `${Math.round(100 * x)}\u202f%`), say("beside.accepted")),
      entry("acceptance_length", known(figures.acceptance_length, (x) => x.toFixed(2)), say("beside.per_pass")),
      entry("target_passes", String(run.rounds.length), say("beside.passes", { n: run.rounds.length })),
      entry("tokens", known(figures.tokens, String), say("beside.tokens", { n: figures.tokens }))));
}

function texts(aligned) {
  const box = make("div", { class: "texts", part: "texts", role: "region", tabindex: "0", "aria-label": say("beside.rows") });
  const made = lines(aligned, LINE[state.layout]);
  const parting = made.findIndex((line) => !line.same);
  const passes = [0, 0];
  made.forEach((line, place) => {
    if (place === 0 && line.same) box.append(border("=", say("beside.common"), "common"));
    if (place === parting) box.append(parted(aligned));
    const cells = line.sides.map((tokens, side) => {
      if (tokens.length) passes[side] = tokens.at(-1).round + 1;
      return cell("AB"[side], tokens, passes[side], place === parting);
    });
    box.append(make("div", { class: line.same ? "columns line same" : "columns line", part: "line" }, ...cells));
  });
  if (aligned.equal) box.append(border("■", say("beside.ends_both"), "common"));
  return box;
}

const border = (sign, text, kind) => make("p", { class: `border ${kind}`, part: `border-${kind}` }, make("b", { "aria-hidden": "true", text: sign }), make("span", { text }));

function parted({ a, b, first }) {
  const over = first[0] === a.length ? "A" : first[1] === b.length ? "B" : null;
  return over ? border("■", say("beside.one_ends", { name: over }), "parting") : border("≠", say("beside.apart"), "parting");
}

function cell(name, tokens, passes, marksFirst) {
  const words = tokens.map((token, place) => make("span", {
    class: `t ${token.kind}${token.starts ? " starts" : ""}${marksFirst && place === 0 ? " parts" : ""}`, "data-kind": token.kind, "data-round": token.round,
    title: token.starts ? say("beside.round_starts", { n: token.round + 1 }) : null, text: token.text,
  }));
  const count = tokens.length ? [make("span", { class: "count", title: say("beside.pass_title", { n: passes }), text: String(passes) })] : [];
  return make("div", { class: "cell", "data-side": name },
    make("b", { class: "name", "aria-hidden": "true", text: name }), make("span", { class: "words", dir: "auto" }, ...words), ...count);
}

window.addEventListener("specviz:run", (event) => take(event.detail));
build();
new ResizeObserver(([{ contentRect: { width } }]) => {
  const layout = width >= WIDE ? "wide" : "narrow";
  if (!width || layout === state.layout) return; // width 0: a hidden tab
  state.layout = layout;
  render();
}).observe(ui.view);
const already = document.querySelector(".specviz-rounds")?.specviz?.finished;
if (already) take(already); // it ended before this part was on the page
