// What a page that is loaded again has to be told to show what it showed before.

/** @typedef {import("../shared/element.js").Message} Message */

/**
 * The messages for the run on the screen, up to the first hole, and for what was asked for and had not begun. A recorded
 * run is none of the visitor's.
 *
 * @param {import("./view.js").View} view
 * @param {{ share: any, charts: any }} told the last of each
 * @returns {Message[]}
 */
export function leftBehind({ run, say }, { share, charts }) {
  const hole = run.rounds.indexOf(null);
  const rounds = hole < 0 ? run.rounds : run.rounds.slice(0, hole);
  const { key, figures } = run;
  const begun = rounds.length > 0 && !run.start.recorded;
  const waits = run.phase === "waiting" || (run.busy && !begun);
  const messages = [];
  if (begun) {
    const reason = waits ? "" : run.busy ? say("rounds.broken_off") : run.status;
    /** @type {Message[]} */
    const parts = [
      /** @type {any} */ (run.start),
      { kind: "rounds", run: key, first: 0, rounds, vocabulary: Object.fromEntries(run.vocabulary), figures },
      { kind: "end", run: key, total: rounds.length, reason, figures },
    ];
    if (run.phase === "error") parts.push({ kind: "error", text: run.note });
    messages.push({ kind: "trace", parts, share, charts });
  }
  if (waits) messages.push({ kind: "left", run: run.busy ? key : null, text: say("rounds.place_lost") });
  return messages;
}
