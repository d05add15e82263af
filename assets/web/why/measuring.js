// The line that says how far a measurement has come, or why there is none.

import { make, setText } from "../shared/dom.js";
import { percent } from "./figures.js";

/** @typedef {import("./state.js").Lab} Lab */

const BUSY = ["waiting", "preparing", "running"];

/** @param {string} phase */
export const isBusy = (phase) => BUSY.includes(phase);

/**
 * Its nodes, and show(fraction, repeats), which says how far the measurement of this name has come.
 *
 * @param {Lab} lab @param {string} name
 */
export function measuringLine(lab, name) {
  const bar = make("i");
  const track = make("div", { class: "track idle", role: "progressbar", "aria-label": lab.say("why.progress"), "aria-valuemin": "0", "aria-valuemax": "100" }, bar);
  const status = make("p", { class: "says", role: "status", part: `${name}-status` });
  const note = make("p", { class: "note hidden", role: "alert", part: `${name}-problem` });
  /** @param {number} fraction @param {number} repeats */
  const show = (fraction, repeats) => {
    const { phase, problem } = lab.state.measuring[name];
    const waiting = phase === "waiting";
    const done = waiting ? 0 : fraction;
    setText(status, waiting ? problem : lab.say(`why.${name}_phase_${phase}`, { percent: percent(fraction), repeats }));
    track.classList.toggle("idle", !isBusy(phase));
    bar.style.width = `${100 * done}%`;
    track.setAttribute("aria-valuenow", String(Math.round(100 * done)));
    note.classList.toggle("hidden", !problem || waiting);
    setText(note, waiting ? "" : problem);
  };
  return { nodes: [status, track, note], show };
}
