// Asking the class: each question of Predict goes to the phones that have joined, and the answers' buttons show how many
// chose them before anything is revealed, and beside what is revealed then. The page's server keeps the count (specviz/ui/routes/wall.py).

import { make, setText } from "../../shared/dom.js";
import { isOwnName } from "../../shared/spot.js";
import { quoted } from "../../shared/tokens.js";

/** @typedef {import("../types.js").Question} Question */

const HOME = new URL("../../../wall", import.meta.url).href;
const EVERY = 1000; // ms between two looks at the counts

/** @param {string} method @param {string} [path] @param {unknown} [body] @returns {Promise<any>} rejects with the status */
async function call(method, path = "", body = undefined) {
  const answer = await fetch(HOME + path, { method, body: body === undefined ? body : JSON.stringify(body), keepalive: true });
  if (!answer.ok) throw answer.status;
  return answer.status === 204 ? null : answer.json();
}

/**
 * The button and its panel; `ask`, which puts a question to the class, null: it is answered; and whether there is a class.
 *
 * @param {import("../view.js").View} view @param {HTMLElement} answers where a button for each option stands
 */
export function wallParts({ say, ui, playback }, answers) {
  /** @type {{ code: string, key: string } | null} */
  let room = null;
  /** @type {Question | null} */
  let asked = null;
  let number = 0;
  /** @type {number[]} of the question that was asked last, by option */
  let votes = [];
  let sent = Promise.resolve(); // questions arrive in the order in which they were asked
  const mine = () => `/${room?.code}?key=${room?.key}`;
  const button = make("button", { type: "button", class: "go", part: "wall-open", text: say("wall.open") });
  const told = make("p", { part: "wall-told", role: "status" });
  const picture = make("img", { alt: say("wall.picture") });
  const link = make("a", { part: "wall-link", target: "_blank" });
  const panel = make("div", { class: "qr", part: "wall", popover: "auto" }, told, make("p", {}, link), make("button", { type: "button", class: "go", text: say("wall.end"), on: { click: () => { end(); panel.hidePopover(); } } }));
  button.popoverTargetElement = panel;
  panel.addEventListener("beforetoggle", (/** @type {ToggleEvent} */ event) => event.newState === "open" && open());
  window.addEventListener("pagehide", () => end());

  async function open() {
    if (room) return;
    try {
      room = await call("POST");
    } catch {
      return setText(told, say("wall.full"));
    }
    if (!playback.predicting) ui.prediction.toggle.click();
    // On a Space too: no model runs on that page, so nobody needs to sign in, and the hub would hand on no path.
    link.href = `${HOME}/${room?.code}/join?lang=${document.documentElement.lang}`;
    setText(link, link.href);
    picture.src = `${HOME}/../qr?${new URLSearchParams({ text: link.href })}`;
    const own = isOwnName(link.href); // no phone could follow the code
    if (own) picture.remove();
    else panel.prepend(picture);
    setText(told, own ? say("wall.own", { host: location.host }) : say("wall.told"));
    ask(asked);
    look(room);
  }

  function end() {
    if (room) call("DELETE", mine()).catch(() => {}); // or it ends by itself
    room = null;
    setText(button, say("wall.open"));
    count([]);
  }

  /** @param {Question | null} question */
  function ask(question) {
    const before = number;
    const options = question?.options.map(({ text, token }) => (token === undefined ? text ?? "" : quoted(say, token))) ?? [];
    if (question) votes = [];
    asked = question;
    number += 1;
    const body = { number, text: question?.text ?? "", options };
    if (!room) return;
    const here = mine();
    sent = sent.then(async () => {
      // Whoever chose since the last look is counted too.
      const last = question ? null : await call("GET", here).catch(() => null);
      if (last?.number === before && number === body.number) count(last.votes);
      await call("POST", here, body).catch(() => {});
    });
  }

  /** @param {{ code: string, key: string } | null} at the class that is looked at, until it is another one */
  async function look(at) {
    if (at === null || at !== room) return;
    /** @type {unknown} */ let refusal;
    const counts = await call("GET", mine()).catch((status) => (refusal = status, null)); // a network may be lost for a while
    if (at !== room) return;
    if (refusal === 404) {
      end();
      setText(told, say("wall.ended"));
      return;
    }
    if (asked && counts?.number === number) count(counts.votes);
    if (counts) setText(button, say("wall.count", { votes: votes.reduce((sum, n) => sum + n, 0), seats: counts.seats }));
    setTimeout(() => look(at), EVERY);
  }

  /** On each answer's button, how many chose it. @param {number[]} counted */
  function count(counted) {
    votes = counted;
    const most = Math.max(1, ...votes);
    [.../** @type {NodeListOf<HTMLElement>} */ (answers.querySelectorAll("[data-value]"))].forEach((node, i) => {
      if (votes[i] === undefined) node.removeAttribute("data-votes");
      else node.setAttribute("data-votes", String(votes[i]));
      node.style.setProperty("--votes", String((votes[i] ?? 0) / most));
    });
  }

  return { button, panel, ask, gathers: () => room !== null };
}
