// From logits to a distribution, from a distribution and a coin to a token, and the acceptance rule: pure functions.
//
// They compute in float32, and add up in float64, as specviz/rules does. Each decision also says how far its coin lay from
// another outcome: `edge`, the distance in log-odds, which rounding of logits moves by about as much as it moves them, divided by
// the temperature; distance in probability would call every draw of an unlikely token near, however well its place is known.

const round = Math.fround;

/** What tokens are drawn from at a temperature; at 0 all mass is on the first largest logit. @param {Float32Array} logits @param {number} temperature */
export function probabilities(logits, temperature) {
  const probs = new Float32Array(logits.length);
  if (temperature === 0) {
    probs[likeliest(logits)] = 1;
    return probs;
  }
  const divisor = round(temperature);
  const most = round(logits[likeliest(logits)] / divisor);
  let sum = 0;
  for (let i = 0; i < logits.length; i++) {
    probs[i] = Math.exp(round(round(logits[i] / divisor) - most));
    sum += probs[i];
  }
  sum = round(sum);
  for (let i = 0; i < probs.length; i++) probs[i] /= sum;
  return probs;
}

/** The first of the largest. @param {Float32Array} row */
export function likeliest(row) {
  let best = 0;
  for (let i = 1; i < row.length; i++) if (row[i] > row[best]) best = i;
  return best;
}

/** How far the largest logit lies above the second. @param {Float32Array} logits */
export function lead(logits) {
  let [first, second] = [-Infinity, -Infinity];
  for (const logit of logits) {
    if (logit > first) [first, second] = [logit, first];
    else if (logit > second) second = logit;
  }
  return first - second;
}

/**
 * The first token whose cumulative probability exceeds u times the whole.
 *
 * @param {Float32Array} probs need not sum to 1
 * @param {number} u from 0 to below 1
 * @returns {{ token: number, start: number, total: number, edge: number }} start: the sum before the token
 */
export function draw(probs, u) {
  let total = 0;
  for (const p of probs) total += p;
  const threshold = u * total;
  let [token, start] = [-1, 0];
  for (let end = 0; end <= threshold; ) {
    start = end;
    end += probs[++token];
  }
  const distance = (/** @type {number} */ end) => (end > 0 && end < total ? (Math.abs(threshold - end) * total) / (end * (total - end)) : Infinity);
  return { token, start, total, edge: Math.min(distance(start), distance(start + probs[token])) };
}

/** norm(max(0, p − q)), the mass that the drafter left uncovered; p itself where that is nothing. @param {Float32Array} p @param {Float32Array} q */
export function residual(p, q) {
  let mass = 0;
  const left = p.map((each, i) => Math.max(0, each - q[i]));
  for (const each of left) mass += each;
  return mass > 0 ? { probs: left.map((each) => each / round(mass)), mass } : { probs: p, mass: 1 };
}

/**
 * Keeps draft token x with probability min(1, p(x)/q(x)), up to the first refusal; a draw from the residual replaces that
 * one, and a draw from the target's last row follows if there was none. So the text follows p, whatever q is.
 * Leviathan et al. 2023, arXiv 2211.17192, Alg. 1; Chen et al. 2023, arXiv 2302.01318.
 *
 * @param {{ tokens: number[], q: Float32Array[] }} draft n tokens, and what each was really drawn from
 * @param {Float32Array[]} p [n + 1] the target's distributions
 * @param {{ accept: number[], next: number }} coins
 */
export function judge({ tokens, q }, p, coins) {
  const bounds = tokens.map((token, i) => round(p[i][token] / q[i][token]));
  let [kept, edge] = [0, Infinity];
  while (kept < tokens.length) {
    edge = Math.min(edge, Math.abs(Math.log(bounds[kept] / coins.accept[kept])));
    if (!(coins.accept[kept] < bounds[kept])) break;
    kept++;
  }
  const { probs: nextProbs, mass } = kept < tokens.length ? residual(p[kept], q[kept]) : { probs: p[kept], mass: 1 };
  const next = draw(nextProbs, coins.next);
  return { kept, acceptProbs: bounds.map((bound) => Math.min(1, bound)), next, nextProbs, edge: Math.min(edge, mass * next.edge) }; // what is left of p and q has the rounding of both
}
