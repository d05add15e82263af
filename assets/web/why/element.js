// <specviz-why>: the lab on why speculation works: what a pass costs here, what decides the speedup, what limits the last
// run.
//
// Takes { kind: "why", … } of specviz/views/tab_messages.py: a message holds sections, and one that it leaves out stays
// as it is. Fires `specviz-press` with { settings, press, back } when its reader asks for a run. `state` shows what it holds.

import { make, scrolling } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { batchesCard, renderBatches } from "./batches_card.js";
import { diagnosisCard, renderDiagnosis } from "./diagnosis_card.js";
import { renderForced, takeForced } from "./forced_part.js";
import { isBusy } from "./measuring.js";
import { passesCard, renderPasses } from "./passes_card.js";
import { emptyState } from "./state.js";
import { renderTheory, takeRun, theoryCard } from "./theory_card.js";

const sheets = [await sheet(new URL("why.css", import.meta.url))];

class SpecvizWhy extends SpecvizElement {
  static sheets = sheets;

  state = emptyState();
  /** @type {import("./state.js").Lab} */
  lab = { host: this, say: this.say, state: this.state, ui: { sliders: [] }, awaited: false, reckon: () => this.reckon() };

  build() {
    this.lab.say = this.say;
    this.shadow.append(make("div", { class: "view", part: "view" },
      passesCard(this.lab), theoryCard(this.lab), diagnosisCard(this.lab), batchesCard(this.lab)));
    this.reckon();
  }

  /** Draws what follows from the sliders. */
  reckon() {
    renderTheory(this.lab);
    renderBatches(this.lab);
  }

  /** @param {string} name @param {{ phase: string, problem: string, result: any }} measuring how far a measurement has come */
  take(name, measuring) {
    const { phase, result } = (this.state.measuring[name] = measuring);
    if (name === "forced") result && takeForced(this.lab, result);
    else if (result || phase === "preparing") this.state[name] = result;
  }

  /** A reader who asked for a run here finds what came of it. */
  bringDiagnosis() {
    this.lab.awaited = false;
    requestAnimationFrame(() => this.lab.ui.diagnosis.parentElement.scrollIntoView({ block: "start", behavior: scrolling() }));
  }

  get handlers() {
    return {
      /** @param {any} message */
      why: (message) => {
        const { state, lab } = this;
        if (message.story) state.story = message.story;
        for (const name of ["passes", "batches", "forced"]) if (message[name]) this.take(name, message[name]);
        if (message.batches) state.place = "here";
        if (message.runs) {
          state.runs = message.runs;
          if (state.runs.length && !state.touched) state.source = "run";
          // The server keeps the last runs of all its visitors only.
          if (!state.runs.length) state.source = "own";
          if (state.source === "run") takeRun(lab);
          renderDiagnosis(lab);
          if (lab.awaited && state.runs.length) this.bringDiagnosis();
        }
        renderPasses(lab);
        // While passes are timed, the curves that they make stand still: they are complete only at the end.
        if (!isBusy(state.measuring.passes.phase) || message.runs) renderTheory(lab);
        else renderForced(lab);
        renderBatches(lab);
      },
    };
  }
}

customElements.define("specviz-why", SpecvizWhy);
