// How numbers are written wherever they are shown.

/**
 * A probability in a chip: .61, <.01, 1.
 *
 * @param {number | null | undefined} x
 * @returns {string}
 */
export function brief(x) {
  if (x === null || x === undefined) return "–";
  if (x <= 0) return "0";
  if (x >= 1) return "1";
  if (x < 0.005) return "<.01";
  if (x >= 0.995) return ">.99";
  return x.toFixed(2).slice(1);
}

/**
 * A probability in a sentence: two decimals, or two digits where it is small.
 *
 * @param {number} x
 * @param {number} [digits]
 * @returns {string}
 */
export function plainNumber(x, digits = 2) {
  if (x === 0 || x === 1) return String(x);
  if (x < 0.0001) return x.toExponential(digits - 1);
  if (x < 0.1) return String(Number(x.toPrecision(digits)));
  const text = x.toFixed(digits);
  return Number(text) === 1 ? plainNumber(x, digits + 1) : text;
}

/**
 * Two numbers that were compared, with as many digits as it takes to see which is larger.
 *
 * @param {number} a
 * @param {number} b
 * @returns {[string, string]}
 */
export function compared(a, b) {
  let digits = 2;
  while (digits < 9 && a !== b && plainNumber(a, digits) === plainNumber(b, digits)) digits += 1;
  return [plainNumber(a, digits), plainNumber(b, digits)];
}

/**
 * p and q, with enough digits that dividing what is shown gives the quotient that is shown.
 *
 * @param {number} p
 * @param {number} q
 * @param {string} shown
 * @returns {[string, string]}
 */
export function divided(p, q, shown) {
  const half = 0.5 * 10 ** -(shown.split(".")[1]?.length ?? 0);
  let digits = 2;
  while (digits < 9 && Math.abs(Number(plainNumber(p, digits)) / Number(plainNumber(q, digits)) - Number(shown)) > half) digits += 1;
  return [plainNumber(p, digits), plainNumber(q, digits)];
}

/**
 * "0.31 / 0.42": the same, as it is written.
 *
 * @param {number} p
 * @param {number} q
 * @param {string} shown
 * @returns {string}
 */
export const quotient = (p, q, shown) => divided(p, q, shown).join(" / ");
