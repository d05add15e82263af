// The inspector: one token in a sentence, its coin, the distributions it was judged by. Reads `state` (rounds.js).

function renderInspector() {
  const { chosen } = state;
  const round = chosen && state.rounds[chosen.round];
  if (!round) {
    ui.title.textContent = "Inspector";
    ui.body.replaceChildren(make("p", { class: "say",
      text: "Point at a token to see why it passed or not: its two probabilities, the coin, and what else the models had in mind." }));
    return;
  }
  if (renderSealed()) return; // playback.js
  const { index } = chosen;
  const token = index === "next" ? round.next : round.drafted[index];
  ui.title.textContent = `Round ${chosen.round + 1}, ${tokenName(round, index)}: ${quoted(token.text)}`;
  const parts = [make("p", { class: "say", part: "say", text: sentence(round, index) })];
  if (index !== "next" && token.u !== null && isJudged(token) && !isLossy(round)) parts.push(coinLine(token));
  parts.push(...siblingTable(round, index), ...distribution(round, index), ...residual(round, index));
  if (isLossy(round)) parts.push(make("p", { class: "raw", part: "distance", text: sayDistance(round) }));
  if (state.pinned && ui.view.dataset.layout === "wide") parts.push(make("p", { class: "raw", text: "Pinned. Esc, or the same chip again, lets go." }));
  ui.body.replaceChildren(...parts);
}

function tokenName(round, index) {
  if (index !== "next" && isTree(round)) return placeInTree(round, index);
  if (index !== "next") return `draft token ${index + 1}`;
  return { recovered: "recovered token", bonus: "bonus token", plain: "plain step" }[nextKind(round)];
}

function sentence(round, index) {
  const say = index === "next" ? sayNext(round) : sayDrafted(round, index);
  const whole = wasDropped(round, index) ? `${say} It was cut off afterwards, because the run stopped before it.` : say;
  return whole.replace(/ ([=<]) /g, "\u00a0$1\u00a0"); // an equation stays on one line
}

function sayDrafted(round, index) {
  const token = round.drafted[index];
  const block = isBlock() && isJudged(token);
  if (token.outcome === "discarded" && !block) return sayDiscarded(round, index);
  if (isGreedy(token)) return `${sayProposed(token)} ${sayGreedy(round, index)}`.trim();
  const opening = `${sayTurn(round, index)} ${sayProposed(token)} ${sayDraw(round, index)}`.trim();
  if (isLossy(round)) return `${opening} ${sayTypical(token)}`;
  if (block) return `${opening} ${sayBlock(round, index)}`;
  return `${opening} ${sayCoin(token)} ${sayAfter(round, index)}`.trim();
}

/** Which layer, head or match put a token forward. */
function sayProposed(token) {
  if (token.source === undefined) return "";
  const match = /^match (\d+)$/.exec(token.source);
  if (match) return `Found after an earlier match of ${plural(Number(match[1]), "token")}.`;
  return `Proposed by ${/^(pool|window)$/.test(token.source) ? "the " : ""}${token.source}.`;
}

/** A sibling's turn: after whom it was tried. */
function sayTurn(round, index) {
  const { kin, order } = siblings(round, index);
  if (kin.length < 2 || isLossy(round)) return "";
  const others = order === 1 ? "tried first" : order === 2
    ? `tried after ${quoted(round.drafted[kin[0]].text)} was refused` : `tried ${ordinal(order)}, after those before it were refused`;
  return `Candidate ${order} of ${kin.length} here, ${others}.`;
}

/** How the draft came to propose a token, with its q. */
function sayDraw(round, index) {
  const token = round.drafted[index];
  const name = quoted(token.text);
  if (isCopy(token)) return `${name} was copied from the text so far; a copy is certain to be proposed, so q = 1.`;
  if (token.q === 1 && isTree(round)) return `${name} was chosen, not drawn, so q = 1.`;
  if (token.q === 1) return `The draft was certain to say ${name}: q = 1.`;
  const again = siblings(round, index).order > 1 ? ", drawing no candidate twice," : "";
  return `The draft${again} said ${name} with q = ${plainNumber(token.q)}.`;
}

function sayCoin(token) {
  const [u, threshold] = compared(token.u, token.accept_prob);
  const verdict = token.outcome === "accepted" ? "accepted" : "refused";
  const tried = token.p_left !== undefined;
  const share = tried ? token.p_left : token.p;
  if (token.p === 0) return "The target gives it p = 0, so no coin can pass.";
  if (share === 0) return `The target gives it p = ${plainNumber(token.p)}, but the candidates before it left nothing of that, p′ = 0: no coin can pass.`;
  const says = tried
    ? `The target gives it p = ${plainNumber(token.p)}; in what the candidates before it left of the target it has p′ = ${plainNumber(share)}`
    : `The target gives it p = ${plainNumber(token.p)}`;
  if (token.accept_prob >= 1) return `${says}, at least as much as the draft, so every coin passes (it fell on u = ${u}): ${verdict}.`;
  const ratio = token.q === 1 ? threshold : `${quotient(share, token.q, threshold)} = ${threshold}`;
  return `${says}, so it passes if u < ${ratio}. The coin fell on u = ${u}: ${verdict}.`;
}

function sayAfter(round, index) {
  if (round.drafted[index].outcome !== "rejected") return "";
  const next = quoted(round.next.text);
  if (!isTree(round)) return `From the residual the target took ${next}.`;
  const { kin, order } = siblings(round, index);
  const after = round.drafted[kin[order]];
  return after ? `Then ${quoted(after.text)} was tried, on what was left.` : `From what was left the target took ${next}.`;
}

/** Block verification (Sun et al. 2024): every coin is flipped, and the last one below its h decides. */
function sayBlock(round, index) {
  const token = round.drafted[index];
  const last = acceptedIndexes(round).at(-1);
  const [u, h] = compared(token.u, token.accept_prob);
  const below = token.u < token.accept_prob;
  const opening = "Block verification keeps up to the last position whose coin falls below h.";
  const coin = `Here h = ${h} and the coin fell on u = ${u}`;
  if (token.outcome === "accepted" && index === last) return `${opening} ${coin}, below it, and no later one is: kept, with all before it.`;
  const later = token.outcome === "accepted" && quoted(round.drafted[last].text);
  if (later && below) return `${opening} ${coin}, below it; ${later} passed later still: kept.`;
  if (later) return `${opening} ${coin}, not below it; this one is kept because a later one, ${later}, passed.`;
  return `${opening} ${coin}, not below it, and no later one passed either: ${token.outcome === "rejected" ? "refused" : "thrown away with what was refused before it"}.`;
}

/** Typical acceptance (Medusa): no coin, a threshold. */
function sayTypical(token) {
  const rule = "Typical acceptance flips no coin: a token passes when its p is above min(ε, δ·exp(−H)), a threshold that falls as the target's entropy H grows.";
  const passes = token.accept_prob >= 1;
  const verdict = token.outcome === "accepted" ? "above it, and on the longest path of such tokens: accepted"
    : passes ? "above it, but a path of such tokens was kept that goes another way: left out" : "not above it: refused";
  return `${rule} Here p = ${plainNumber(token.p)} is ${verdict}.`;
}

function sayDistance(round) {
  return `Lossy: the first token's law was ${plainNumber(round.distance)} in total variation away from the target's.`;
}

function sayDiscarded(round, index) {
  const token = round.drafted[index];
  const opening = isCopy(token) ? `${quoted(token.text)} was copied from the text so far.`
    : state.start.greedy || token.q === 1 ? `The draft went on with ${quoted(token.text)}.`
    : `The draft said ${quoted(token.text)} with q = ${plainNumber(token.q)}.`;
  return [sayProposed(token), opening, sayCut(round, index)].filter(Boolean).join(" ");
}

/** Where the branch of a discarded token was cut: the nearest judged token above it, or a sibling of its branch. */
function sayCut(round, index) {
  let top = index;
  while (parentOf(round, top) >= 0 && round.drafted[parentOf(round, top)].outcome === "discarded") top = parentOf(round, top);
  const above = round.drafted[parentOf(round, top)];
  if (above?.outcome === "rejected") {
    return `It was never judged: ${quoted(above.text)} before it was refused, and what was drafted after a refusal is thrown away.`;
  }
  if (isLossy(round)) return "It was left out: the longest path of tokens above their threshold went another way.";
  const taken = siblings(round, top).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  if (!taken) return "It was never judged: the accepted path went another way.";
  return top === index ? `It was never tried: ${quoted(taken.text)}, before it in line, was accepted.`
    : `It was never judged: the accepted path went another way, with ${quoted(taken.text)}.`;
}

function sayGreedy(round, index) {
  const token = round.drafted[index];
  const name = quoted(token.text);
  const opening = isCopy(token) ? `${name} was copied from the text so far.` : `The draft's choice was ${name}.`;
  if (token.outcome === "accepted") return `${opening} It is also the target's likeliest token here: a match, accepted. Greedy decoding flips no coin.`;
  const sibling = siblings(round, index).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  const choice = `${opening} The target's likeliest token here is ${quoted((sibling ?? round.next).text)}.`;
  return sibling ? `${choice} They differ, so this branch is refused; another candidate matched.`
    : `${choice} They differ, so the draft token is refused and the target's own stands in its place.`;
}

function sayNext(round) {
  const { next } = round;
  const name = quoted(next.text);
  const kind = nextKind(round);
  const greedy = next.u === null;
  const draw = greedy ? `The likeliest is ${name}.`
    : `The draw fell on u = ${plainNumber(next.u)} and gave ${name}, p = ${plainNumber(next.prob)}.`;
  if (kind === "plain") return `Nothing was drafted in this round, so the target took an ordinary step. ${draw}`;
  if (isLossy(round)) return `The kept path ends here, and the target added a token from its own distribution. ${draw}`;
  if (kind === "bonus") return `${sayClean(round)} The same pass already holds the target's distribution after the last of them, so one more token comes free. ${draw}`;
  return sayRecovered(round);
}

function sayClean(round) {
  const count = acceptedIndexes(round).length;
  if (isTree(round)) return `${count === 1 ? "A draft token was" : `${count} draft tokens were`} accepted, up to the end of their branch.`;
  return `All ${count > 1 ? `${count} draft tokens were` : "that was drafted was"} accepted.`;
}

function sayRecovered(round) {
  const { next } = round;
  const name = quoted(next.text);
  const refused = round.drafted.filter((token) => token.outcome === "rejected" && token.parent === parentOf(round, "next"));
  const opening = refused.length > 1 ? `All ${refused.length} candidates here were refused`
    : refused.length ? `${quoted(refused[0].text)} was refused` : "No draft token was left standing";
  if (next.u === null) return `${opening}, so the target's own likeliest token, ${name}, takes its place.`;
  const draw = `The draw fell on u = ${plainNumber(next.u)} and gave ${name}`;
  if (!(rowOf(round, "next").residual ?? []).length) return `${opening}, and the target drew again. ${draw}, probability ${plainNumber(next.prob)}.`;
  const from = isBlock()
    ? "the residual of the block: max(0, w·p − q), scaled to sum to 1, where w is the weight of what was kept (p_τ in the paper)"
    : refused.length > 1 ? "what they left of it: each in turn leaves max(0, p′ − q), scaled to sum to 1" : "the residual: max(0, p − q), scaled to sum to 1";
  return `${opening}, so the target drew from ${from}. ${draw}, which has probability ${plainNumber(next.prob)} there.`;
}

/** The unit interval: below accept_prob, the token's own threshold, the coin passes. */
function coinLine(token) {
  const [u, threshold] = compared(token.u, token.accept_prob);
  const box = make("div", { class: `line ${token.outcome === "accepted" ? "accepted" : "rejected"}`, role: "img", "aria-label": `Coin ${u}; it passes below ${threshold}` });
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
  // Drawn siblings come from different laws, and the row lists that of the first; chosen ones come from none.
  const first = !isTree(round) || families(round).get(parentOf(round, index))[0] === index;
  if (!greedy && (!first || (isTree(round) && token.q === 1))) q.clear();
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
  if (isLossy(round)) return []; // it draws from the target's own row
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
  return [make("h4", { text: residualHeading(round) }), bars];
}

function residualHeading(round) {
  if (isBlock()) return "Residual of the block: max(0, w·p − q), scaled to sum to 1";
  return isTree(round) ? "What the refused candidates left of the target" : "Residual: max(0, p − q), scaled to sum to 1";
}

/** The candidates for one place, in the order tried, each with what those before it left of the target. */
function siblingTable(round, index) {
  if (!isTree(round)) return [];
  const { kin } = siblings(round, index);
  if (kin.length < 2) return [];
  const columns = siblingColumns(round, kin);
  const table = make("table", { class: "siblings", part: "siblings" });
  const heads = columns.map(([name]) => make("th", { scope: "col", text: name }));
  table.append(make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "token" }), ...heads, make("th", { scope: "col", "aria-label": "verdict" }))));
  const body = make("tbody");
  for (const node of kin) {
    const token = round.drafted[node];
    const cells = columns.map(([, value]) => make("td", { text: brief(value(token)) }));
    body.append(make("tr", { class: node === index ? `${token.outcome} on` : token.outcome },
      showToken(make("th", { scope: "row" }), token.text), ...cells,
      make("td", { class: "sign", text: SYMBOL[token.outcome], "aria-label": token.outcome })));
  }
  table.append(body);
  const inTurn = columns.length > 1;
  const parts = [make("h4", { text: inTurn ? "Candidates here, in the order tried" : "Candidates here" }), table];
  if (inTurn) parts.push(make("p", { class: "raw", text: "p′ is p in what the refused candidates above left of the target." }));
  return parts;
}

/** [heading, value of a token] for each column of numbers that the rule goes by. */
function siblingColumns(round, kin) {
  const p = ["p", (token) => (state.start.greedy ? token.p_raw : token.p)];
  if (state.start.greedy || isLossy(round)) return [p];
  const left = ["p′", (token) => token.p_left ?? (token.outcome === "discarded" ? null : token.p)];
  const q = ["q", (token) => token.q];
  return [p, left, q, ["u <", (token) => token.accept_prob], ["u", (token) => token.u]];
}
