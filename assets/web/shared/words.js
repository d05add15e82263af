// The texts of an element, by their keys: files of assets/text/LANGUAGE, as records/words.py hands them over.

import { written } from "./numbers.js";

/** @typedef {string | { one: string, other: string }} Text where it counts something, one sentence for `n` = 1 */
/** @typedef {(key: string, values?: Record<string, unknown>) => string} Say */

/**
 * A function that says the text of a key, with a {name} filled in for each of its values; `values.n` chooses the plural.
 * It throws where there is no such text: that is a defect of the page, and no reader's.
 *
 * @param {Record<string, Text>} texts
 * @returns {Say}
 */
export function speaker(texts) {
  return (key, values = {}) => {
    const text = texts[key];
    if (text === undefined) throw new Error(`No text for ${key}`);
    const chosen = typeof text === "string" ? text : text[values.n === 1 ? "one" : "other"];
    return chosen.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? said(values[name]) : whole));
  };
}

/** A number as the language writes it; all else as it is. @param {unknown} value */
const said = (value) => (typeof value === "number" ? written(String(value)) : String(value));
