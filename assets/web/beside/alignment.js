// Two texts by position: where two runs on one prompt stand to each other.

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
export function alignment(runA, runB) {
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
export function lines(aligned, most) {
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

export const characters = (text) => [...text].length;
