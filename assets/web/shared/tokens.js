// How a model's tokens are written wherever they are shown.

import { make } from "./dom.js";

/** @typedef {import("./words.js").Say} Say */

/** The sign of each verdict on a token, and of each token the target draws. @type {Record<string, string>} */
export const SYMBOL = { accepted: "✓", rejected: "✗", discarded: "┄", recovered: "↻", bonus: "★", plain: "○", open: "?", undrafted: "" };
/** @type {Record<string, string>} */
const CONTROL = { "\n": "⏎", "\r": "␍", "\t": "⇥" };

/** Whether a token is bytes that are no whole character. @param {string} text */
const isPartial = (text) => /^\ufffd*$/.test(text);

/**
 * A token with its white space made visible, as [text, isMark] parts.
 *
 * @param {Say} say
 * @param {string} text
 * @returns {[string, boolean][]}
 */
function visibleParts(say, text) {
  if (isPartial(text)) return [[say("common.part_of_character"), true]];
  /** @type {[string, boolean][]} */
  const parts = [];
  for (const char of text) {
    const code = char.codePointAt(0) ?? 0;
    const mark = char === " " ? "·" : CONTROL[char] ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : null);
    const last = parts.at(-1);
    if (last && last[1] === (mark !== null)) last[0] += mark ?? char;
    else parts.push([mark ?? char, mark !== null]);
  }
  return parts;
}

/**
 * Writes a token into a node, its white space as marks.
 *
 * @template {Element} Node
 * @param {Say} say
 * @param {Node} node
 * @param {string} text
 */
export function showToken(say, node, text) {
  node.replaceChildren(...visibleParts(say, text).map(([part, mark]) => (mark ? make("i", { text: part }) : part)));
  node.setAttribute("dir", "auto");
  node.setAttribute("translate", "no");
  return node;
}

/** A token as a text alone, its white space as marks. @param {Say} say @param {string} text */
export const tokenLabel = (say, text) => visibleParts(say, text).map(([part]) => part).join("");

/** Running text on one line: spaces stay, other control characters become marks. @param {Say} say @param {string} text */
export const onOneLine = (say, text) => [...text].map((char) => (char === " " || char === "\ufffd" ? char : visibleParts(say, char)[0][0])).join("");

/**
 * ‹ dragon›: the token as prose quotes it; isolated so that right-to-left text cannot turn the sentence around.
 *
 * @param {Say} say
 * @param {string} text
 */
export function quoted(say, text) {
  const written = (/** @type {string} */ char) => (char === " " ? "\u00a0" : visibleParts(say, char)[0][0]);
  const shown = isPartial(text) ? say("common.part_of_character") : [...text].map(written).join("");
  return `‹\u2068${shown}\u2069›`;
}
