// Probabilities at another temperature, from those that are recorded: the likeliest tokens', and of all others their sum.

/** As many tokens as no vocabulary has more of. */
const VOCABULARY = 2 ** 18;

const LISTED = 5; // of a row's tokens, so many are its likeliest (TOP in specviz/decoding/fetched.py)

/** @typedef {[least: number, most: number]} Range */

/**
 * The listed tokens' shares when each logit is multiplied by `power`, recorded temperature over the new one. All shares
 * become p^power over their sum; of the tokens that are not listed only the sum of p is known, and that none has more
 * than the last of the likeliest. So each share lies in a range: narrow where it gets colder, wide where it gets warmer.
 *
 * @param {Map<number, number>} shares @param {number} power @returns {Map<number, Range>}
 */
export function tempered(shares, power) {
  const known = [...shares.values()].sort((a, b) => b - a);
  if (power === 1) return new Map([...shares].map(([id, share]) => [id, [share, share]]));
  const rest = known.length < LISTED ? 0 : Math.max(0, 1 - known.reduce((sum, share) => sum + share, 0));
  const [least, most] = restOf(rest, known[LISTED - 1], power);
  const listed = known.reduce((sum, share) => sum + share ** power, 0);
  return new Map([...shares].map(([id, share]) => [id, [share ** power / (listed + most), share ** power / (listed + least)]]));
}

/**
 * Σ r^power over shares that sum to `rest`, none above `most`: convex for a power above 1, so it is largest where few
 * tokens have as much as they may, and smallest where all have the same; below 1 the other way round.
 *
 * @param {number} rest @param {number} most @param {number} power @returns {Range}
 */
function restOf(rest, most, power) {
  if (rest <= 0 || most <= 0) return [0, 0];
  const full = Math.floor(rest / most);
  const together = full * most ** power + (rest - full * most) ** power;
  const apart = VOCABULARY * (rest / VOCABULARY) ** power;
  return power > 1 ? [apart, together] : [together, apart];
}
