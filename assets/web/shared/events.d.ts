// What the page's parts tell each other: DOM events that bubble up to the document, by name, with their `detail`.

import type { Figures, Gap, Round, Spot, Start } from "../run/types.js";
import type { Message } from "./element.js";

/** A run that has ended and is here as a whole. */
export type Finished = { run: string | null; start: Start; rounds: (Round | null)[]; text: string; figures: Figures };

/** The pair in use, and the drafters that it lacks with their reasons, brief and whole. */
export type PairFacts = { pair: string; name: Record<string, any>; off: { drafter: string; label: string; why: [string, string] }[] };

/** Settings for the controls, and the button to press then, null for none; `back`: the tab to come back to. */
export type Press = {
  settings: Record<string, any>; press: string | null; details?: Record<string, any>; back?: string; measure?: boolean | null; pair?: string;
};

export type Events = {
  "specviz-ask-missing": Gap & { answer(messages: Message[]): void };
  "specviz-ask-supposed": { settings: Record<string, any>; pair: string; what: Record<string, any>; answer(message: Message | null): void };
  "specviz-ask-server": { what: string; visit: string; form: Record<string, any> };
  "specviz-call": { name: string; wanted: Record<string, any>; answer(value: any): void };
  "specviz-ask-served": { text: string; chains: boolean; speedups: string; answer(message: Message | null): void };
  "specviz-branch": Spot;
  "specviz-can-press": null; // cancelled by whoever presses
  "specviz-charts": Record<string, any>; // the charts' values by their place
  "specviz-choose": { name: string | null }; // a recorded run
  "specviz-finished": Finished;
  "specviz-lab": { rule: string }; // that the page's address names, for the Lossless tab
  "specviz-opened": null; // the page was opened by a link
  "specviz-pair": PairFacts;
  "specviz-press": Press;
  "specviz-refused": { sentence: string }; // why something that was asked for is not done
  "specviz-sampling": number[]; // in the order of `SamplingParams`
  "specviz-set": { before: Record<string, any> }; // what the controls said before they were set
  "specviz-share": Record<string, any>; // of `share` in specviz/records/links.py
  "specviz-tried": Message; // a trial that is over
};

type Typed = { [Name in keyof Events]: CustomEvent<Events[Name]> };

declare global {
  interface DocumentEventMap extends Typed {}
  interface HTMLElementEventMap extends Typed {}
}
