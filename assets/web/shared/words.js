// The texts of an element, by their keys: files of assets/web and assets/text, as records/words.py hands them over.

import { formatted, written } from "./numbers.js";

/** @typedef {string | { one: string, other: string }} Text where it counts something, one sentence for `n` = 1 */
/** @typedef {(key: string, values?: Record<string, unknown>) => string} Say */

/**
 * A function that says the text of a key, with a {name}, or a {name:.2f} for a number in a format of Python, filled in for
 * each of its values; `values.n` chooses the plural. It throws where there is no such text: that is a defect of the page.
 *
 * @param {Record<string, Text>} texts
 * @returns {Say}
 */
export function speaker(texts) {
  return (key, values = {}) => {
    const text = texts[key];
    if (text === undefined) throw new Error(`No text for ${key}`);
    const chosen = typeof text === "string" ? text : text[values.n === 1 ? "one" : "other"];
    return chosen.replace(/\{(\w+)(?::([^{}]+))?\}/g, (whole, name, format) =>
      !(name in values) ? whole : format ? formatted(Number(values[name]), format) : said(values[name]));
  };
}

/** A number as the language writes it; all else as it is. @param {unknown} value */
const said = (value) => (typeof value === "number" ? written(String(value)) : String(value));

/**
 * Puts texts in the place of all that a message has to say, { say: key, … its values } and { join: …, parts }; changes the
 * message. Values and parts may be said themselves. Rounds hold nothing but figures and the models' own texts.
 *
 * @template T
 * @param {T} message
 * @param {Say} say
 * @returns {T}
 */
export function spoken(message, say) {
  if (typeof message !== "object" || message === null) return message;
  const fields = /** @type {Record<string, any>} */ (message);
  if (fields.kind === "rounds") return message;
  for (const [name, value] of Object.entries(fields)) if (typeof value === "object") fields[name] = spoken(value, say);
  if ("join" in fields && "parts" in fields) return fields.parts.join(fields.join);
  return "say" in fields ? /** @type {any} */ (say(fields.say, fields)) : message;
}
