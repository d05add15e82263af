// How numbers are written wherever they are shown.

/** What stands before the decimals in the page's language. */
let decimalMark = ".";

/** @param {string} mark */
export function writeDecimals(mark) {
  decimalMark = mark;
}

/** A number as the page's language writes it, with a minus sign for the hyphen. @param {string} plain as JavaScript writes it */
export const written = (plain) => plain.replace(".", decimalMark).replaceAll("-", "−");

/**
 * A number by one of Python's formats: ".2f", ".0%", ".2g", "g", ",".
 *
 * @param {number} x @param {string} format
 */
export function formatted(x, format) {
  const [, digits, kind] = /** @type {string[]} */ (/^(?:\.(\d+))?(.)$/.exec(format));
  if (kind === ",") return x.toLocaleString("en").replaceAll(",", "\u202f");
  if (kind === "%") return `${fixed(100 * x, Number(digits))}\u202f%`;
  return kind === "f" ? fixed(x, Number(digits)) : written(general(x, Number(digits ?? 6)));
}

/** @param {number} x @param {number} digits @returns {string} */
function general(x, digits) {
  const [head, power] = x.toExponential(digits - 1).split("e");
  if (Number(power) >= -4 && Number(power) < digits) return String(Number(x.toPrecision(digits)));
  return `${Number(head)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

/** @param {number} x @param {number} digits */
export const fixed = (x, digits) => written(x.toFixed(digits));

/** Tokens a second: three digits are as many as one was measured to. @param {number} x */
export const rate = (x) => fixed(x, x >= 100 ? 0 : 1);

/**
 * A probability where there is no room, in chips and pictures: .61, <.01, 1. Sentences and tables write 0.61.
 *
 * @param {number | null | undefined} x
 * @returns {string}
 */
export function brief(x) {
  if (x === null || x === undefined) return "–";
  if (x <= 0) return "0";
  if (x >= 1) return "1";
  if (x < 0.005) return written("<.01");
  if (x >= 0.995) return written(">.99");
  return written(x.toFixed(2).slice(1));
}

/** A range of them: .31, or .29–.33 where that is all that is known. @param {[number, number]} range */
export const briefly = ([least, most]) => [...new Set([brief(least), brief(most)])].join("–");

/**
 * A probability in a sentence: two decimals, or two digits where it is small; a dash for one that nobody knows.
 *
 * @param {number | null} x
 * @param {number} [digits]
 * @returns {string}
 */
export const plainNumber = (x, digits = 2) => (x === null ? "–" : written(plain(x, digits)));

/** @param {number} x @param {number} digits @returns {string} */
function plain(x, digits) {
  if (x === 0 || x === 1) return String(x);
  if (x < 0.0001) return x.toExponential(digits - 1);
  if (x < 0.1) return String(Number(x.toPrecision(digits)));
  const text = x.toFixed(digits);
  return Number(text) === 1 ? plain(x, digits + 1) : text;
}

/** How many decimals it was written with. @param {string} shown */
export const decimalsOf = (shown) => shown.split(decimalMark)[1]?.length ?? 0;

/** @param {string} shown */
const numberOf = (shown) => Number(shown.replace(decimalMark, ".").replaceAll("−", "-"));

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
 * @param {number | null} p
 * @param {number | null} q
 * @param {string} shown
 * @returns {[string, string]}
 */
export function divided(p, q, shown) {
  if (p === null || q === null) return [plainNumber(p), plainNumber(q)];
  const half = 0.5 * 10 ** -decimalsOf(shown);
  let digits = 2;
  while (digits < 9 && Math.abs(Number(plain(p, digits)) / Number(plain(q, digits)) - numberOf(shown)) > half) digits += 1;
  return [plainNumber(p, digits), plainNumber(q, digits)];
}

/**
 * "0.31 / 0.42": the same, as it is written.
 *
 * @param {number | null} p
 * @param {number | null} q
 * @param {string} shown
 * @returns {string}
 */
export const quotient = (p, q, shown) => divided(p, q, shown).join(" / ");
