// What a tab of the browser keeps over a reload. A browser may refuse storage altogether: then nothing is kept.

/** @param {string} name @returns {any} null if nothing is kept by that name */
export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(`specviz:${name}`) ?? "null");
  } catch {
    return null;
  }
}

/** @param {string} name @param {any} value */
export function keep(name, value) {
  try {
    sessionStorage.setItem(`specviz:${name}`, JSON.stringify(value));
  } catch {
    // Nothing depends on it.
  }
}
