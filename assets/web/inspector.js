// The inspector: one token in plain sentences, its coin, the laws it was judged by and the draw. Reads `state` (rounds.js).
//
// `sentence`, `coinLine`, `distribution`, `residual` and `drawLine` are whole by themselves, for whoever shows a token.
// Their sizes are in em, so that a reader can have them larger.

function renderInspector() {
  const { chosen } = state;
  const round = chosen && state.rounds[chosen.round];
  if (!round) {
    ui.title.textContent = say("rounds.inspector");
    ui.body.replaceChildren(make("p", { class: "say", text: say("rounds.invitation") }));
    return;
  }
  if (renderSealed()) return; // playback.js
  const { index } = chosen;
  const token = tokenAt(round, index);
  ui.title.textContent = say("rounds.title", { round: chosen.round + 1, name: tokenName(round, index), token: quoted(token.text) });
  const parts = [make("p", { class: "say", part: "say", text: sentence(round, index) })];
  if (hasCoin(round, index)) parts.push(coinLine(token));
  parts.push(...blockTable(round, index), ...siblingTable(round, index), ...distribution(round, index));
  parts.push(...(isRefusal(round, index) ? residual(round, index) : index === "next" ? drawLine(round) : []));
  if (isLossy(round)) parts.push(make("p", { class: "raw", part: "distance", text: sayDistance(round) }));
  if (state.pinned && ui.view.dataset.layout === "wide") parts.push(make("p", { class: "raw", text: say("rounds.pinned") }));
  ui.body.replaceChildren(...parts);
  // Another token is read from its beginning.
  if (ui.inspected !== token) ui.inspector.scrollTop = 0;
  ui.inspected = token;
}

const tokenAt = (round, index) => (index === "next" ? round.next : round.drafted[index]);

const hasCoin = (round, index) => index !== "next" && round.drafted[index].u !== null && isJudged(round.drafted[index]) && !isLossy(round);

/** Whether this is where a draft ended: a refused token, or what the target drew in its place. */
function isRefusal(round, index) {
  if (state.start.greedy || isLossy(round)) return false;
  return index === "next" ? nextKind(round) === "recovered" : round.drafted[index].outcome === "rejected";
}

function tokenName(round, index) {
  if (index === "next") return say(`rounds.name_${nextKind(round)}`);
  return isTree(round) ? placeInTree(round, index) : say("rounds.name_draft", { number: index + 1 });
}

// --- in sentences -----------------------------------------------------------------------------------------------------

/** What happened to a token; the numbers in it can be worked out from the ones beside them. */
function sentence(round, index) {
  const said = index === "next" ? sayNext(round) : sayDrafted(round, index);
  if (wasDropped(round, index)) said.push(say("rounds.dropped"));
  return unbroken(said.join(" "));
}

/** An equation stays on one line. */
const unbroken = (text) => text.replace(/ ([=</]) /g, "\u00a0$1\u00a0");

function sayDrafted(round, index) {
  const token = round.drafted[index];
  const block = isBlock() && isJudged(token);
  if (token.outcome === "discarded" && !block) return [...sayProposed(token), sayDiscarded(token), sayCut(round, index)];
  if (isGreedy(token)) return [...sayProposed(token), ...sayGreedy(round, index)];
  const opening = [...sayTurn(round, index), ...sayProposed(token), sayDraw(round, index)];
  if (isLossy(round)) return [...opening, say("rounds.typical_rule"), sayTypical(token)];
  if (block) return [...opening, say("rounds.block_given", { p: plainNumber(token.p) }), say("rounds.block_rule"), sayBlock(round, index)];
  return [...opening, sayCoin(round, index), ...sayAfter(round, index)];
}

/** Which layer, head or match put a token forward. */
function sayProposed({ source }) {
  if (source === undefined) return [];
  const match = /^match (\d+)$/.exec(source);
  if (match) return [say("rounds.found", { n: Number(match[1]) })];
  if (/^(pool|window)$/.test(source)) return [say(`rounds.proposed_${source}`)];
  return [say("rounds.proposed", { source: sourceName(source) })];
}

/** A sibling's turn: after whom it was tried. */
function sayTurn(round, index) {
  const { kin, order } = siblings(round, index);
  if (kin.length < 2 || isLossy(round)) return [];
  const turn = ["first", "second"][order - 1] ?? "later";
  const before = quoted(round.drafted[kin[0]].text);
  return [say(`rounds.turn_${turn}`, { order, count: kin.length, before, refused: order - 1 })];
}

/** How the draft came to propose a token, with its q. */
function sayDraw(round, index) {
  const token = round.drafted[index];
  const values = { token: quoted(token.text), q: judgedBy(token).q };
  if (isCopy(token)) return say("rounds.drew_copy", values);
  if (token.q === 1) return say(isTree(round) ? "rounds.drew_choice" : "rounds.drew_certain", values);
  return say(siblings(round, index).order > 1 ? "rounds.drew_again" : "rounds.drew", values);
}

/**
 * The numbers of a coin as they are written: `share`, what p or p′ was, and q with the digits it takes to divide them,
 * u, and `bound`, what it had to stay below.
 */
function judgedBy(token) {
  const tried = token.p_left ?? token.p;
  const [u, threshold] = token.u === null ? ["", ""] : compared(token.u, token.accept_prob);
  if (token.u === null || isBlock() || token.accept_prob >= 1 || token.accept_prob <= 0 || token.q === 1) {
    return { share: plainNumber(tried), q: plainNumber(token.q), u, bound: threshold };
  }
  const [share, q] = divided(tried, token.q, threshold);
  return { share, q, u, bound: `${quotient(tried, token.q, threshold)} = ${threshold}` };
}

/** p, what the coin had to stay below, the coin and its verdict. */
function sayCoin(round, index) {
  const token = round.drafted[index];
  const { share, u, bound } = judgedBy(token);
  const tried = token.p_left !== undefined;
  const values = { p: tried ? plainNumber(token.p) : share, left: share, u, bound };
  if (token.p === 0) return say("rounds.coin_never", values);
  if (token.accept_prob === 0) return say("rounds.coin_never_left", values);
  const suffix = tried ? "_left" : "";
  if (token.accept_prob >= 1) return say(`rounds.coin_always${suffix}`, values);
  const more = token.outcome === "rejected" && round.drafted.some((other) => other.parent === index);
  return say(`rounds.coin_${token.outcome}${more ? "_all" : ""}${suffix}`, values);
}

function sayAfter(round, index) {
  if (round.drafted[index].outcome !== "rejected") return [];
  const next = quoted(round.next.text);
  if (!isTree(round)) return [say("rounds.then_residual", { next })];
  const { kin, order } = siblings(round, index);
  const after = round.drafted[kin[order]];
  return [after ? say("rounds.then_sibling", { after: quoted(after.text) }) : say("rounds.then_left", { next })];
}

/** Block verification (Sun et al. 2024): every coin is flipped, and the last one below its h decides. */
function sayBlock(round, index) {
  const token = round.drafted[index];
  const last = acceptedIndexes(round).at(-1);
  const [u, h] = compared(token.u, token.accept_prob);
  const values = { u, h, later: last === undefined ? "" : quoted(round.drafted[last].text) };
  if (token.outcome !== "accepted") return say(`rounds.block_${token.outcome}`, values);
  if (index < last) return say(token.u < token.accept_prob ? "rounds.block_below" : "rounds.block_above", values);
  return say(index === round.drafted.length - 1 ? "rounds.block_end" : "rounds.block_last", values);
}

/** Typical acceptance (Medusa): no coin, a threshold. */
function sayTypical(token) {
  const verdict = token.outcome === "accepted" ? "accepted" : token.accept_prob >= 1 ? "elsewhere" : "rejected";
  return say(`rounds.typical_${verdict}`, { p: plainNumber(token.p) });
}

function sayDistance(round) {
  return say("rounds.distance", { distance: plainNumber(round.distance) });
}

function sayDiscarded(token) {
  const values = { token: quoted(token.text), q: plainNumber(token.q) };
  if (isCopy(token)) return say("rounds.went_on_copy", values);
  return say(state.start.greedy || token.q === 1 ? "rounds.went_on" : "rounds.drew", values);
}

/** Where the branch of a discarded token was cut: the nearest judged token above it, or a sibling of its branch. */
function sayCut(round, index) {
  let top = index;
  while (parentOf(round, top) >= 0 && round.drafted[parentOf(round, top)].outcome === "discarded") top = parentOf(round, top);
  const above = round.drafted[parentOf(round, top)];
  if (above?.outcome === "rejected") return say("rounds.cut_after", { above: quoted(above.text) });
  if (isLossy(round)) return say("rounds.cut_typical");
  const taken = siblings(round, top).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  if (!taken) return say("rounds.cut_path");
  return say(top === index ? "rounds.cut_sibling" : "rounds.cut_branch", { taken: quoted(taken.text) });
}

function sayGreedy(round, index) {
  const token = round.drafted[index];
  const opening = say(isCopy(token) ? "rounds.went_on_copy" : "rounds.greedy_choice", { token: quoted(token.text) });
  if (token.outcome === "accepted") return [opening, say("rounds.greedy_match")];
  const sibling = siblings(round, index).kin.map((node) => round.drafted[node]).find((other) => other.outcome === "accepted");
  const choice = quoted((sibling ?? round.next).text);
  return [opening, say(sibling ? "rounds.greedy_branch" : "rounds.greedy_refused", { choice })];
}

function sayNext(round) {
  const kind = nextKind(round);
  if (kind === "plain") return [say("rounds.next_plain"), sayDrawn(round)];
  if (isLossy(round)) return [say("rounds.next_typical"), sayDrawn(round)];
  if (kind === "recovered") return sayRecovered(round);
  const clean = say(isTree(round) ? "rounds.next_clean_tree" : "rounds.next_clean", { n: acceptedIndexes(round).length });
  return [clean, say("rounds.next_free"), sayDrawn(round)];
}

function sayRecovered(round) {
  const refused = refusedHere(round);
  const values = { token: quoted(refused[0]?.text ?? ""), refused: refused.length, next: quoted(round.next.text) };
  const many = refused.length === 1 ? "" : "_many";
  if (round.next.u === null) return [say(`rounds.next_greedy${many}`, values)];
  return [say(`rounds.next_residual${isBlock() ? "_block" : many}`, values), sayDrawn(round)];
}

/** The draft tokens that were refused where the target's own token stands. */
const refusedHere = (round) => round.drafted.filter((token) => token.outcome === "rejected" && token.parent === parentOf(round, "next"));

function sayDrawn(round) {
  const { next } = round;
  const token = quoted(next.text);
  if (next.u === null) return say("rounds.draw_greedy", { token });
  const prob = plainNumber(next.prob);
  return isPlaced(next) ? say("rounds.draw", { token, prob, ...placeOfDraw(next) })
    : say("rounds.draw_unplaced", { token, prob, u: plainNumber(next.u) });
}

/** Older traces do not say where on the line a token lies. */
const isPlaced = (next) => typeof next.below === "number";

/** Start, u and end of the drawn piece, with as many digits as it takes to see them in this order. */
function placeOfDraw({ below, u, prob }) {
  const shown = plainNumber(prob);
  let digits = shown.includes("e") ? 9 : Math.max(2, (shown.split(".")[1]?.length ?? 0) + 1);
  const write = () => [below, u, Math.min(1, below + prob)].map((x) => x.toFixed(digits));
  const inOrder = ([start, at, end]) => Number(start) <= Number(at) && Number(at) < Number(end);
  while (digits < 9 && !inOrder(write())) digits += 1;
  const [start, at, end] = write();
  return { start, u: at, end };
}

// --- the coin ---------------------------------------------------------------------------------------------------------

/** The line from 0 to 1: below accept_prob, the token's own threshold, the coin passes. */
function coinLine(token) {
  const [u, threshold] = compared(token.u, token.accept_prob);
  const zones = [...zone("pass", 0, token.accept_prob, token.u), ...zone("fail", token.accept_prob, 1, token.u)];
  const bar = make("div", { class: "track" }, ...zones, tickAt(token.u),
    marker(token.accept_prob, threshold, "below"), marker(token.u, `u = ${u}`, "above"));
  return make("div", { class: `line ${token.outcome}`, role: "img", part: "coin", "aria-label": say("rounds.coin_picture", { u, threshold }) },
    make("span", { class: "end", text: "0" }), bar, make("span", { class: "end", text: "1" }));
}

/** A stretch of the line, with its name where it has room for one beside the coin. */
function zone(kind, start, end, u) {
  const sign = kind === "pass" ? "✓" : "✗";
  const inside = u >= start && u < end;
  const room = inside ? Math.max(u - start, end - u) : end - start;
  const text = room > 0.34 ? `${sign} ${say(`rounds.${kind}`)}` : room > 0.1 ? sign : "";
  const node = make("div", { class: kind }, make("span", { text }));
  node.style.width = `${100 * (end - start)}%`;
  if (inside) node.style.padding = u - start > end - u ? `0 ${(100 * (end - u))}% 0 0` : `0 0 0 ${100 * (u - start)}%`;
  return end > start ? [node] : [];
}

function tickAt(u) {
  const tick = make("div", { class: "u" });
  tick.style.left = `${100 * u}%`;
  return tick;
}

function marker(at, text, side) {
  const node = make("span", { class: `mark ${side}`, text });
  node.style.left = `${100 * at}%`;
  // Slides from left-aligned at 0 to right-aligned at 1, so it never leaves the line.
  node.style.transform = `translateX(${-100 * at}%)`;
  return node;
}

// --- p and q ----------------------------------------------------------------------------------------------------------

const SHOWN = 6;

/** p and q of the likeliest tokens, side by side; where a token was refused, with what p has over q. */
function distribution(round, index) {
  const token = tokenAt(round, index);
  const { p, q, weight } = laws(round, index);
  const ids = [...new Set([...p.keys(), ...q.keys()])].sort((a, b) => (p.get(b) ?? 0) - (p.get(a) ?? 0));
  const shown = ids.slice(0, SHOWN);
  if (!shown.includes(token.id) && (p.has(token.id) || q.has(token.id))) shown[Math.max(0, Math.min(SHOWN, shown.length) - 1)] = token.id;
  if (!shown.length) return [];
  const rest = (map) => Math.max(0, 1 - shown.reduce((sum, id) => sum + (map.get(id) ?? 0), 0));
  const rows = shown.map((id) => ({ name: nameOf(id, id === token.id), p: p.get(id) ?? 0, q: q.get(id) ?? 0, text: quoted(tokenText(id)) }));
  rows.push({ name: restName(), p: rest(p), q: rest(q), text: say("rounds.others"), rest: true });
  const both = q.size > 0;
  const left = both && isRefusal(round, index);
  const scale = Math.max(...rows.flatMap((row) => (row.rest ? [0.01] : [row.p, row.q])));
  const label = rows.map((row) => `${row.text}: p ${brief(row.p)}${both ? `, q ${brief(row.q)}` : ""}`).join("; ");
  const bars = make("div", { class: `bars ${left ? "three" : both ? "two" : "one"}`, role: "img", part: "distribution", "aria-label": label });
  bars.append(make("span"), make("span"), make("span", { class: "h p", text: "p" }));
  if (both) bars.append(make("span", { class: "h q", text: "q" }));
  if (left) bars.append(make("span", { class: "h left", text: weight === null ? "p − q" : "w·p − q" }));
  for (const row of rows) barRow(bars, row, { both, left, scale, weight: weight ?? 1 });
  const greedy = Boolean(state.start.greedy);
  const heading = greedy ? "rounds.heading_raw" : both ? "rounds.heading_both" : "rounds.heading_target";
  return [make("h4", { text: say(heading) }), bars, barsLegend(token, { both, left, weight }), ...rawLine(token, index, greedy)];
}

/**
 * The target's and the drafter's law where a token was judged or drawn, as Maps from ids; q is empty where the record
 * holds none for this token. weight: what block verification multiplies p by; null under other rules.
 */
function laws(round, index) {
  const row = rowOf(round, index);
  const token = tokenAt(round, index);
  // A greedy p is 0 or 1 and says nothing; the models' own probabilities do.
  const greedy = Boolean(state.start.greedy);
  const p = new Map(greedy && row.p_raw?.length ? row.p_raw : row.p);
  const q = new Map(greedy ? (row.q_raw ?? []) : (row.q ?? []));
  if (index !== "next" && !greedy && token.outcome !== "discarded") {
    p.set(token.id, token.p);
    q.set(token.id, token.q);
  }
  // Drawn siblings come from different laws, and the row lists that of the first; chosen ones come from none.
  const { kin, order } = siblings(round, index);
  if (!greedy && isTree(round) && kin.length !== 1 && (order !== 1 || token.q === 1)) q.clear();
  if (!greedy && isLossy(round)) q.clear();
  return { p, q, weight: isBlock() ? (blockWeights(round)[parentOf(round, index)] ?? 1) : null };
}

/** p_i of block verification (Sun et al. 2024) after each draft token: min(p_{i−1}·p/q, 1), from p_0 = 1. */
function blockWeights(round) {
  let weight = 1;
  return round.drafted.map((token) => (weight = Math.min(1, (weight * token.p) / token.q)));
}

const nameOf = (id, chosen) => showToken(make("span", { class: chosen ? "name on" : "name" }), tokenText(id));
const restName = () => make("span", { class: "name rest", text: say("rounds.others") });

/** One token's p above its q; what of p lies beyond q is hatched. */
function barRow(bars, row, { both, left, scale, weight }) {
  const bar = make("span", { class: row.rest ? "bar rest" : "bar" });
  const stripe = (kind, from, to) => {
    if (to <= from) return;
    // The rest may be far longer than any token's bar: then it is drawn broken off.
    const node = make("i", { class: to > scale ? `${kind} broken` : kind });
    node.style.left = `${(100 * from) / scale}%`;
    node.style.width = `${(100 * (Math.min(to, scale) - from)) / scale}%`;
    bar.append(node);
  };
  stripe(both ? "p" : "p wide", 0, row.p);
  if (both) stripe("q", 0, row.q);
  // The rest is many tokens, and some of them may lie above q where others lie below.
  const over = left && !row.rest;
  if (over) stripe("left", row.q, weight * row.p);
  bars.append(row.name, bar, make("span", { class: "v p", text: brief(row.p) }));
  if (both) bars.append(make("span", { class: "v q", text: brief(row.q) }));
  if (left) bars.append(make("span", { class: "v left", text: over ? brief(Math.max(0, weight * row.p - row.q)) : "" }));
}

function barsLegend(token, { both, left, weight }) {
  const entry = (kind, sign, text) => make("span", {}, make("b", { class: kind, text: sign }), ` ${text}`);
  const legend = make("div", { class: "legend" }, entry("target", "p", say("rounds.legend_target")));
  if (both) legend.append(entry("draft", "q", say(isCopy(token) ? "rounds.legend_copy" : "rounds.legend_draft")));
  if (!left) return legend;
  const text = weight === null ? say("rounds.legend_left") : say("rounds.legend_left_block", { w: plainNumber(weight) });
  legend.append(make("span", {}, make("i", { class: "patch" }), ` ${text}`));
  return legend;
}

/** The models' own softmax, where temperature or filters changed it. */
function rawLine(token, index, greedy) {
  if (index === "next") return [];
  const changed = Math.abs(token.p_raw - token.p) > 0.005 || (token.q_raw !== null && Math.abs(token.q_raw - token.q) > 0.005);
  if (!changed) return [];
  const key = `rounds.raw_${greedy ? "greedy_" : ""}${token.q_raw === null ? "target" : "both"}`;
  const values = { token: quoted(token.text), p: plainNumber(token.p_raw), q: token.q_raw === null ? "" : plainNumber(token.q_raw) };
  return [make("p", { class: "raw", text: unbroken(say(key, values)) })];
}

// --- the draw ---------------------------------------------------------------------------------------------------------

/** After a refusal: the residual as pieces of the line from 0 to 1, and the draw that fell on it. */
function residual(round, index) {
  if (!isRefusal(round, index)) return [];
  const pairs = rowOf(round, "next").residual ?? [];
  // Only the last of several refused siblings leaves what was drawn from.
  const refused = index === "next" ? refusedHere(round) : [round.drafted[index]];
  if (!pairs.length || refused.at(-1) !== refusedHere(round).at(-1)) return [];
  const total = refusedHere(round).length === 1 ? leftInAll(round) : null;
  const heading = total !== null ? say("rounds.residual_total", { total: plainNumber(total) })
    : say(refusedHere(round).length === 1 ? "rounds.residual" : "rounds.residual_many");
  return [make("h4", { text: heading }), ...pieces(round, pairs, "residual")];
}

/** What p has over q, summed over the vocabulary: a listed token's share of it, divided by its share of the residual. */
function leftInAll(round) {
  const { p, q, weight } = laws(round, "next");
  const shares = rowOf(round, "next").residual.map(([id, share]) => [(weight ?? 1) * (p.get(id) ?? 0) - (q.get(id) ?? 0), share]);
  const [over, share] = shares.reduce((most, one) => (one[0] > most[0] ? one : most), [0, 1]);
  return over > 0 ? over / share : null;
}

/** The draw of a token that nothing was refused for: from the target's own law. */
function drawLine(round) {
  if (!isPlaced(round.next)) return [];
  return [make("h4", { text: say("rounds.line_own") }), ...pieces(round, [], "draw")];
}

/**
 * The line from 0 to 1, cut into one piece a token in the order of the draw, with u on it; below, its listed pieces one
 * by one. `pairs`: [id, share], all that an older trace tells of them: then they have no places, and there is no line.
 */
function pieces(round, pairs, part) {
  const { next } = round;
  const kind = isLossy(round) ? "bonus" : nextKind(round);
  const placed = isPlaced(next);
  const listed = placed ? next.line : pairs.map(([id, share]) => [id, 0, share]);
  const at = placed && placeOfDraw(next);
  const picture = placed ? say("rounds.line_picture", { token: quoted(next.text), ...at })
    : listed.map(([id, , share]) => `${quoted(tokenText(id))}: ${brief(share)}`).join("; ");
  const box = make("div", { class: `pieces ${kind}`, role: "img", part, "aria-label": picture });
  if (placed) {
    const whole = track(listed.map(([id, start, end]) => [start, end, id === next.id]), next);
    whole.classList.add("whole");
    whole.append(marker(next.u, `u = ${at.u}`, "above"));
    box.append(make("span"), whole, make("span"));
  }
  const row = (name, value, spans) => box.append(name, track(spans, placed && next), make("span", { class: "v", text: brief(value) }));
  for (const [id, start, end] of listed) row(nameOf(id, id === next.id), end - start, [[start, end, id === next.id]]);
  const gaps = placed ? gapsBetween(listed) : [];
  const rest = placed ? gaps.reduce((sum, [start, end]) => sum + end - start, 0) : 1 - listed.reduce((sum, [, , share]) => sum + share, 0);
  if (rest > 0.0005) row(restName(), rest, placed ? gaps : [[0, rest]]);
  return [box, ...(placed ? [make("p", { class: "raw", text: say("rounds.line_legend") })] : [])];
}

/** A stretch from 0 to 1 with these [start, end, drawn] pieces on it, and u where there is a draw. */
function track(spans, draw) {
  const node = make("span", { class: "track" });
  for (const [start, end, drawn] of spans) {
    const piece = make("i", { class: drawn ? "drawn" : null });
    piece.style.left = `${100 * start}%`;
    piece.style.width = `${100 * (end - start)}%`;
    node.append(piece);
  }
  if (draw) node.append(tickAt(draw.u));
  return node;
}

/** What of the line no listed piece covers. */
function gapsBetween(listed) {
  const edges = [0, ...listed.flatMap(([, start, end]) => [start, end]), 1];
  const gaps = [];
  for (let i = 0; i < edges.length; i += 2) if (edges[i + 1] > edges[i]) gaps.push([edges[i], edges[i + 1]]);
  return gaps;
}

// --- tables -----------------------------------------------------------------------------------------------------------

/** A table of draft tokens: `columns` are [heading, text of a token's cell]; the verdict closes each row. */
function tokenTable(round, nodes, chosen, columns, part) {
  const heads = columns.map(([name]) => make("th", { scope: "col", text: name }));
  const head = make("tr", {}, make("th", { scope: "col", text: say("rounds.token") }), ...heads, make("th", { scope: "col", "aria-label": say("rounds.verdict") }));
  const rows = nodes.map((node) => {
    const token = round.drafted[node];
    return make("tr", { class: node === chosen ? `${token.outcome} on` : token.outcome },
      showToken(make("th", { scope: "row" }), token.text), ...columns.map(([, cell]) => make("td", { text: cell(token, node) })),
      make("td", { class: "sign", text: SYMBOL[token.outcome], "aria-label": say(`rounds.${token.outcome}`) }));
  });
  return make("table", { class: "tokens", part }, make("thead", {}, head), make("tbody", {}, ...rows));
}

/** A number of a table: .31; with more digits where it takes them to tell it from the one it was compared with. */
const cell = (text) => text.replace(/^0\./, ".");
const comparedCells = (token) => (token.u === null || !isJudged(token) ? ["–", "–"] : compared(token.u, token.accept_prob).map(cell));

/** Block verification: weight, what is left, h and coin of every position. */
function blockTable(round, index) {
  if (!isBlock() || !round.drafted.some(isJudged)) return [];
  const weights = blockWeights(round);
  // h = Z / (Z + 1 − w) solved for Z; where h is 1 it says nothing of Z, and near 1 too little.
  const left = ({ accept_prob: h }, node) => (node === weights.length - 1 || h > 0.9999 ? null : (h * (1 - weights[node])) / (1 - h));
  const columns = [["w", (token, node) => brief(weights[node])], ["Z", (token, node) => brief(left(token, node))],
    ["h", (token) => comparedCells(token)[1]], ["u", (token) => comparedCells(token)[0]]];
  return [make("h4", { text: say("rounds.block_table") }), tokenTable(round, [...round.drafted.keys()], index, columns, "block"),
    make("p", { class: "raw", text: say("rounds.block_legend") })];
}

/** The candidates for one place, in the order tried, each with what those before it left of the target. */
function siblingTable(round, index) {
  if (!isTree(round)) return [];
  const { kin } = siblings(round, index);
  if (kin.length < 2) return [];
  const inTurn = !state.start.greedy && !isLossy(round);
  const parts = [make("h4", { text: say(inTurn ? "rounds.candidates_in_turn" : "rounds.candidates") }),
    tokenTable(round, kin, index, siblingColumns(inTurn), "siblings")];
  if (inTurn) parts.push(make("p", { class: "raw", text: say("rounds.candidates_legend") }));
  return parts;
}

function siblingColumns(inTurn) {
  const p = ["p", (token) => brief(state.start.greedy ? token.p_raw : token.p)];
  if (!inTurn) return [p];
  const left = ["p′", (token) => brief(token.p_left ?? (token.outcome === "discarded" ? null : token.p))];
  const q = ["q", (token) => brief(token.q)];
  return [p, left, q, ["u <", (token) => comparedCells(token)[1]], ["u", (token) => comparedCells(token)[0]]];
}
