// What a round says about its tokens, and its draft as a tree. Reads `state` (rounds.js).

// --- what a round says about its tokens ---------------------------------------------------------------------------

const nextKind = (round) => (round.drafted.length ? round.next.kind : "plain");
const acceptedIndexes = (round) => round.drafted.flatMap((token, i) => (token.outcome === "accepted" ? [i] : []));
const isGreedy = (token) => Boolean(state.start.greedy) && token.u === null;
const isCopy = (token) => token.q_raw === null && token.q === 1 && /^match |^$/.test(token.source ?? "");

// Under a lossy rule every round carries its distance from the target's law; greedy drafts are matched by any rule.
const isLossy = (round) => round.distance !== undefined;
const isBlock = () => state.start.rule === "block" && !state.start.greedy;
const isJudged = (token) => token.accept_prob !== null;

/** The chip an emitted token belongs to: accepted draft tokens in path order, then the target's own. */
function chipOfEmitted(round, k) {
  const accepted = acceptedIndexes(round);
  return k < accepted.length ? accepted[k] : "next";
}

/** Which row of the target pass judged or drew this token. */
function rowOf(round, index) {
  const accepted = acceptedIndexes(round);
  const parent = index === "next" ? (accepted.at(-1) ?? -1) : round.drafted[index].parent;
  return round.top[parent + 1] ?? { p: [] };
}

/** What put a token forward, in words; the engine's own where it has no others. */
function sourceName(source) {
  const [, part, number] = /^(head|layer|match) (\d+)$/.exec(source) ?? [];
  if (part) return say(`rounds.source_${part}`, { number });
  return /^(pool|window)$/.test(source) ? say(`rounds.source_${source}`) : source;
}

/** Position among the emitted tokens, or -1: not emitted (refused, discarded, or cut off by the stop). */
function emittedPosition(round, index) {
  const accepted = acceptedIndexes(round);
  const position = index === "next" ? accepted.length : accepted.indexOf(index);
  return position < round.emitted.length ? position : -1;
}

function wasDropped(round, index) {
  const kept = index === "next" || round.drafted[index].outcome === "accepted";
  return kept && emittedPosition(round, index) < 0;
}

function tokenText(id) {
  return state.vocabulary.get(id) ?? `#${id}`;
}

// --- trees -------------------------------------------------------------------------------------------------------------

/** Whether a draft branches: in a chain each token continues the one before it. */
const isTree = (round) => round.drafted.some((token, i) => token.parent !== i - 1);

/** What a node continues: a draft token's index, or −1 for the committed text. */
function parentOf(round, index) {
  return index === "next" ? (acceptedIndexes(round).at(-1) ?? -1) : round.drafted[index].parent;
}

/** From each node to what continues it, in the order tried; the target's own token comes after the draft's. */
function families(round) {
  const found = new Map([[-1, []]]);
  round.drafted.forEach((token, i) => {
    found.get(token.parent).push(i);
    found.set(i, []);
  });
  found.get(parentOf(round, "next")).push("next");
  return found.set("next", []);
}

/** A draft token among its siblings: { kin, order }, order from 1. A chain has no siblings: kin is the token alone. */
function siblings(round, index) {
  const kin = families(round).get(parentOf(round, index)).filter((node) => node !== "next");
  return { kin, order: kin.indexOf(index) + 1 };
}

function depthOf(round, index) {
  const parent = parentOf(round, index);
  return parent < 0 ? 1 : 1 + depthOf(round, parent);
}

function placeInTree(round, index) {
  const { kin, order } = siblings(round, index);
  return say(kin.length > 1 ? "rounds.place_of_many" : "rounds.place", { depth: depthOf(round, index), order, count: kin.length });
}

/**
 * A { column, row } for every node, one column a depth, no column higher than the widest depth. A node stands beside
 * its parent unless those above it need the place or those below would run out of it; as every column keeps the order
 * of the one before, no two branches cross.
 */
function layOut(round) {
  const kin = families(round);
  const columns = [];
  for (let column = kin.get(-1); column.length; column = column.flatMap((node) => kin.get(node))) columns.push(column);
  const height = Math.max(...columns.map((column) => column.length));
  const spots = new Map([[-1, { column: -1, row: 0 }]]);
  columns.forEach((nodes, column) => {
    let free = 0;
    nodes.forEach((node, i) => {
      const beside = spots.get(parentOf(round, node)).row;
      const row = Math.max(free, Math.min(beside, height - (nodes.length - i)));
      spots.set(node, { column, row });
      free = row + 1;
    });
  });
  return { spots, columns, height };
}
