// A class's answers, as the page's server keeps them for one lesson (specviz/ui/routes/lessons.py).

import { linkToPage } from "../shared/spot.js";

/** @typedef {import("./answers.js").Person} Person */
/** @typedef {{ code: string, key: string }} Taught */

const ADDRESS = new URL("../../lessons", import.meta.url).href;

/** @param {string} method @param {string} path @param {string} [body] @returns {Promise<any>} rejects with the status */
async function ask(method, path, body) {
  const answer = await fetch(ADDRESS + path, { method, body });
  if (!answer.ok) throw answer.status;
  return answer.status === 204 ? null : answer.json();
}

/** @returns {Promise<Taught>} */
export const openLesson = () => ask("POST", "");

/** @param {string} code @returns {Promise<string>} the phone's seat */
export const takeSeat = (code) => ask("POST", `/${encodeURIComponent(code)}`).then(({ seat }) => seat);

/** @param {string} code @param {{ seat: string, phase: string } & import("./answers.js").Answers} answers */
export const leaveAnswers = (code, answers) => ask("POST", `/${encodeURIComponent(code)}`, JSON.stringify(answers));

/** @param {Taught} taught @returns {Promise<Person[]>} by seat */
export const readAnswers = ({ code, key }) => ask("GET", `/${code}?key=${key}`);

/** @param {Taught} taught */
export const endLesson = ({ code, key }) => ask("DELETE", `/${code}?key=${key}`);

/** The lesson that the page's own address names. */
export const linkedLesson = () => new URLSearchParams(location.search).get("lesson");

/** @param {string} code */
export const linkToLesson = (code) => linkToPage(`lesson=${code}`);

/** @param {string} link */
export const pictureOf = (link) => new URL(`../../qr?${new URLSearchParams({ text: link })}`, import.meta.url).href;
