// What a browser keeps for a page: until its tab is closed, or, `lasting`, for good. It may refuse storage altogether: then
// nothing is kept.

/** @param {boolean} lasting */
const storage = (lasting) => (lasting ? localStorage : sessionStorage);

/** @param {string} name @param {boolean} [lasting] @returns {any} null if nothing is kept by that name */
export function kept(name, lasting = false) {
  try {
    return JSON.parse(storage(lasting).getItem(`specviz:${name}`) ?? "null");
  } catch {
    return null;
  }
}

/** @param {string} name @param {any} value @param {boolean} [lasting] */
export function keep(name, value, lasting = false) {
  try {
    storage(lasting).setItem(`specviz:${name}`, JSON.stringify(value));
  } catch {
    // Nothing depends on it.
  }
}
