// The page by which a phone joins a class (specviz/ui/routes/wall.py): the question on the wall, and one vote.
// Until its tab is closed, a phone keeps its seat and its last vote: a page that is loaded again has no second one.

import { make, setText } from "../shared/dom.js";
import { keep, kept } from "../shared/kept.js";
import { speaker } from "../shared/words.js";

const EVERY = 1500; // ms between two looks

const say = speaker(JSON.parse(document.getElementById("words")?.textContent ?? ""));
const room = new URL("../", location.href).href + location.pathname.split("/").at(-2);
const [asked, told, options] = [make("h1"), make("p", { role: "status" }), make("div")];
/** @type {{ seat?: string, number?: number, option?: number }} its place, and its last vote */
const mine = kept(room) ?? {};
let shown = -1; // the number of the question that is shown

document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
document.body.append(make("main", {}, asked, options, told));
setText(told, say("wall.wait"));

/** A seat, so that the wall knows how many are there. */
async function sit() {
  const answer = mine.seat ? null : await fetch(room, { method: "POST" }).catch(() => null);
  if (answer?.ok) keep(room, Object.assign(mine, await answer.json()));
}

async function look() {
  const answer = await fetch(room).catch(() => null); // a phone loses its network for a while
  const question = answer?.ok ? await answer.json() : undefined;
  if (question === null) return show({ number: -2, text: say("wall.ended"), options: [] }, "");
  if (question) show(question, say("wall.wait"));
  await sit();
  setTimeout(look, EVERY);
}

/** @param {{ number: number, text: string, options: string[] }} question @param {string} wait */
function show({ number, text, options: names }, wait) {
  if (number === shown) return;
  shown = number;
  setText(asked, text);
  setText(told, names.length ? "" : wait);
  options.replaceChildren(...names.map((name, option) => make("button", { type: "button", translate: "no", dir: "auto", text: name, on: { click: () => vote(number, option) } })));
  if (names.length && number === mine.number) settle();
}

/** @param {number} number @param {number} option */
async function vote(number, option) {
  const answer = await fetch(room, { method: "POST", body: JSON.stringify({ seat: mine.seat, number, option }) }).catch(() => null);
  if (!answer?.ok) return; // another tap tries again
  keep(room, Object.assign(mine, { number, option }));
  if (number === shown) settle();
}

/** Shows the vote on this question. */
function settle() {
  [...options.querySelectorAll("button")].forEach((one, option) => {
    one.disabled = true;
    if (option === mine.option) one.setAttribute("aria-pressed", "true");
  });
  setText(told, say("wall.voted"));
}

look();
