// How tokens and numbers are written wherever they are shown.

const SYMBOL = { accepted: "✓", rejected: "✗", discarded: "┄", recovered: "↻", bonus: "★", plain: "○" };
const CONTROL = { "\n": "⏎", "\r": "␍", "\t": "⇥" };

const isPartial = (text) => /^\ufffd*$/.test(text); // bytes that are no whole character

/** A token with its white space made visible, as [text, isMark] parts. */
function visibleParts(text) {
  if (isPartial(text)) return [[say("common.part_of_character"), true]];
  const parts = [];
  for (const char of text) {
    const code = char.codePointAt(0);
    const mark = char === " " ? "·" : CONTROL[char] ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : null);
    const last = parts.at(-1);
    if (last && last[1] === (mark !== null)) last[0] += mark ?? char;
    else parts.push([mark ?? char, mark !== null]);
  }
  return parts;
}

function showToken(node, text) {
  node.replaceChildren(...visibleParts(text).map(([part, mark]) => (mark ? make("i", { text: part }) : part)));
  node.setAttribute("dir", "auto");
  return node;
}

/** ‹ dragon›: the token as prose quotes it; isolated so that right-to-left text cannot turn the sentence around. */
function quoted(text) {
  const shown = isPartial(text) ? say("common.part_of_character") : [...text].map((c) => (c === " " ? "\u00a0" : visibleParts(c)[0][0])).join("");
  return `‹\u2068${shown}\u2069›`;
}

/** A probability in a chip: .61, <.01, 1. */
function brief(x) {
  if (x === null || x === undefined) return "–";
  if (x <= 0) return "0";
  if (x >= 1) return "1";
  if (x < 0.005) return "<.01";
  if (x >= 0.995) return ">.99";
  return x.toFixed(2).slice(1);
}

/** A probability in a sentence: two decimals, or two digits where it is small. */
function plainNumber(x, digits = 2) {
  if (x === 0 || x === 1) return String(x);
  if (x < 0.0001) return x.toExponential(digits - 1);
  if (x < 0.1) return String(Number(x.toPrecision(digits)));
  const text = x.toFixed(digits);
  return Number(text) === 1 ? plainNumber(x, digits + 1) : text;
}

/** Two numbers that were compared, with as many digits as it takes to see which is larger. */
function compared(a, b) {
  let digits = 2;
  while (digits < 9 && a !== b && plainNumber(a, digits) === plainNumber(b, digits)) digits += 1;
  return [plainNumber(a, digits), plainNumber(b, digits)];
}

/** p and q, with enough digits that dividing what is shown gives the quotient that is shown. */
function divided(p, q, shown) {
  const half = 0.5 * 10 ** -(shown.split(".")[1]?.length ?? 0);
  let digits = 2;
  while (digits < 9 && Math.abs(plainNumber(p, digits) / plainNumber(q, digits) - Number(shown)) > half) digits += 1;
  return [plainNumber(p, digits), plainNumber(q, digits)];
}

/** "0.31 / 0.42": the same, as it is written. */
const quotient = (p, q, shown) => divided(p, q, shown).join(" / ");
