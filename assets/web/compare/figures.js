// How the Compare tab writes its figures.

export const DASH = "—";

export const isNumber = (x) => typeof x === "number";
export const times = (x) => (isNumber(x) ? `${x.toFixed(2)}×` : DASH);
export const rate = (x) => (isNumber(x) ? x.toFixed(x >= 100 ? 0 : 1) : DASH);
export const percent = (x) => (isNumber(x) ? `${Math.round(100 * x)}\u202f%` : DASH);
export const decimals = (digits) => (x) => (isNumber(x) ? x.toFixed(digits) : DASH);
export const short = (x) => (isNumber(x) ? x.toFixed(2).replace(/^0/, "") : "");
export const visible = (text) => text.replace(/^ /, "\u00b7").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
