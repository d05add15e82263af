// How the Compare tab writes its figures.

import { fixed, rate as perSecond } from "../shared/numbers.js";

export const DASH = "—";

export const isNumber = (x) => typeof x === "number";
export const times = (x) => (isNumber(x) ? `${fixed(x, 2)}×` : DASH);
export const rate = (x) => (isNumber(x) ? perSecond(x) : DASH);
export const percent = (x) => (isNumber(x) ? `${Math.round(100 * x)}\u202f%` : DASH);
export const decimals = (digits) => (x) => (isNumber(x) ? fixed(x, digits) : DASH);
export const short = (x) => (isNumber(x) ? fixed(x, 2).replace(/^0/, "") : "");
export const visible = (text) => text.replace(/^ /, "\u00b7").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
