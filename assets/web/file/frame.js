// What the pages in files of their own share: what a file carries, its heading in each language, light and dark.
// Nothing comes from anywhere else, so they work offline, and from a folder.

import { make } from "../shared/dom.js";

/**
 * What is said in one language, with what the page's own script takes of it.
 *
 * @typedef {{ name: string, brand: string, words: Record<string, import("../shared/words.js").Text>, title: string, subtitle: string,
 *   made: string, settings?: string, [own: string]: any }} Said
 */

/** @type {{ languages: Record<string, Said>, [own: string]: any }} */
const given = await unpacked(/** @type {HTMLElement} */ (document.getElementById("given")).textContent ?? "");

const dark = matchMedia("(prefers-color-scheme: dark)");
const tint = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", tint);
tint();

/**
 * Shows the page, and again in each language that is asked for.
 *
 * @param {(main: HTMLElement, said: Said, given: { [own: string]: any }, before: any) => void} fill  fills the page's
 *   main part; before: that part in the language before, null at first
 * @param {string} [language]
 */
export function open(fill, language = document.documentElement.lang) {
  const said = given.languages[language];
  const before = document.querySelector("main");
  const main = make("main");
  document.documentElement.lang = language;
  document.title = said.title;
  document.body.replaceChildren(
    make("header", {}, make("h1", { text: said.brand }), ...[said.subtitle, said.made, said.settings].filter(Boolean).map((text) => make("p", { text })),
      ...others(fill, language)),
    main);
  fill(main, said, given, before);
}

/** The ways into the other languages. @param {Parameters<typeof open>[0]} fill @param {string} shown */
function others(fill, shown) {
  return Object.entries(given.languages).filter(([language]) => language !== shown).map(([language, { name }]) =>
    make("button", { type: "button", lang: language, text: name, on: { click: () => {
      open(fill, language);
      /** @type {HTMLElement} */ (document.querySelector("header button")).focus();
    } } }));
}

/** Packed: JSON, by gzip, in base64. @param {string} packed */
function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
