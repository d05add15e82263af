// What each message does to the view. A message carries only what is new (specviz/views/run_messages.py).

import { bringIntoSight, scrolling } from "../shared/dom.js";
import { keep } from "../shared/kept.js";
import { draw, redraw } from "./drawing.js";
import { whenAtRest } from "./picture/supposing.js";
import { resetPlayback } from "./playback/playback.js";
import { playsByItself } from "./playback/showing.js";

/** @typedef {import("../shared/element.js").Message} Message */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./types.js").Gap} Gap */

/**
 * Takes a message by its kind, one of `waiting`, `left`, `error`, `notice`, `start`, `rounds`, `end`, `trace`, `server` and `pair`.
 *
 * @param {View} view
 * @param {(gap: Gap) => void} ask asks for rounds that never arrived
 * @returns {Record<string, (message: Message) => void>}
 */
export function handlersOf(view, ask) {
  /** @type {Record<string, (message: Message) => void>} */
  const handlers = {
    waiting(message) {
      // On a phone the buttons stand far above what they start.
      if (view.run.phase !== "waiting" && view.ui.view.hasAttribute("data-small")) view.host.scrollIntoView({ block: "start", behavior: scrolling() });
      view.run.phase = "waiting";
      view.run.status = message.text;
    },
    left(message) {
      view.run.phase = view.run.key === null ? "empty" : "finished";
      view.run.status = message.text;
    },
    error(message) {
      view.run.phase = "error";
      view.run.awaited = false;
      view.run.status = view.say("rounds.failed");
      view.run.note = message.text;
    },
    notice(message) {
      view.run.note = message.text;
      view.host.scrollIntoView({ block: "start", behavior: scrolling() });
    },
    start(message) {
      // A start repeated for the run on the screen (a resend) only fills in what was missing.
      if (message.run !== view.run.key) begin(view, message.run, message.recorded);
      view.run.start = /** @type {import("./types.js").Start} */ (/** @type {any} */ (message));
      view.ui.prompt.textContent = message.prompt;
    },
    rounds(message) {
      const unannounced = beginUnannounced(message.run);
      if (message.first !== null) askFor(message.first, unannounced);
      if (!view.run.add(message)) return;
      redraw(view);
      draw(view); // at once: what is pressed before the next frame must find its rounds there
    },
    end(message) {
      askFor(message.total, beginUnannounced(message.run));
      view.run.measure(message.figures);
      view.run.phase = "finished";
      view.run.awaited = message.more;
      view.run.status = [message.reason, message.note].filter(Boolean).join(" ");
    },
    server(message) {
      if (view.run.busy) view.run.status = view.say(message.answers ? "rounds.running" : "rounds.gone");
    },
    pair(message) {
      view.pair = message.pair;
      whenAtRest(view); // what is supposed may be worked out now
    },
    trace(message) {
      const { key } = view.run;
      for (const part of message.parts) handlers[part.kind](part);
      if (view.run.start.recorded) view.ui.followRounds.hold(); // a recorded run is read from its beginning
      else if (view.run.key !== key) resetPlayback(view, false); // it comes from a file, or was on this page before
    },
  };

  /** Whether this is of a run whose start was lost. @param {string} run */
  function beginUnannounced(run) {
    if (run === view.run.key) return false;
    begin(view, run);
    return true;
  }

  /** @param {number} count @param {boolean} unannounced the answer brings the start along, too */
  function askFor(count, unannounced) {
    const gap = view.run.leaveHoles(count) ?? (unannounced ? { run: /** @type {string} */ (view.run.key), first: 0, count } : null);
    if (gap) ask(gap);
  }

  return handlers;
}

/** @param {View} view @param {string} key @param {string} [recorded] */
function begin(view, key, recorded = "") {
  const apart = view.host.hasAttribute("apart");
  resetPlayback(view, !recorded || playsByItself());
  view.begin(key);
  if (!apart) keep("run", recorded ? null : key);
  view.picture.piece = null;
  view.ui.picture.removeAttribute("data-open"); // what it spoke about is gone
  if (apart) view.host.scrollIntoView({ block: "start", behavior: scrolling() }); // the form that asked for the run fills the window
  else if (!recorded) bringIntoSight(view.host); // a recorded run may open the page: nobody has asked for it yet
  redraw(view);
}
