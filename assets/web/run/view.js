// What the parts of the run view share: the run, what of it is drawn, where its reader is, and the nodes drawn into.

import { Run } from "./data.js";

/** @typedef {import("../shared/words.js").Say} Say */
/** @typedef {import("./types.js").Spot} Spot */
/** @typedef {import("./types.js").Place} Place */
/** @typedef {import("./types.js").Chunk} Chunk */

/**
 * What the bar, the keys and the presentation can do.
 *
 * @typedef {{ step(direction: number): void, goToStart(): void, goToEnd(): void, goToRound(count: number): void,
 *   togglePlay(): void, openPresentation(): void }} Actions
 */

export class View {
  /** @param {HTMLElement} host @param {ShadowRoot} shadow @param {Say} say */
  constructor(host, shadow, say) {
    this.host = host;
    this.shadow = shadow;
    this.say = say;
    /** @type {any} the nodes drawn into, by what they show */
    this.ui = {};

    // When it was drawn, and whether it will be.
    this.scheduled = false;
    this.lastDraw = 0;

    // The reader's place (place.js); null is the end, and behind it a live run.
    this.playback = {
      at: /** @type {Place | null} */ (null),
      playing: false,
      speed: 1,
      unit: "token", // or "decision", "round": how far a step goes
      timer: 0,
      frame: 0,
      sums: [{ accepted: 0, judged: 0, holes: 0 }], // counts up to each round
      shown: /** @type {{ round: number, count: number } | null} */ (null), // how far the text was shown last
      unfolded: /** @type {number | null} */ (null), // the tree that playback unfolded
      telling: false, // a step goes stage by stage
    };
    this.presentation = { open: false, drawn: "", before: /** @type {Element | null} */ (null) };
    this.forget();
  }

  /** Forgets run and choice; what is drawn is emptied by `redraw`. @param {string | null} key */
  forget(key = null) {
    this.run = new Run(this.say, key);

    this.drawn = 0; // rounds already on the page
    this.chunks = /** @type {Chunk[]} */ ([]);
    this.spans = /** @type {HTMLElement[][]} */ ([]); // per round, the text's spans
    this.distance = { sum: 0, rounds: 0 }; // of a lossy rule, over the drawn rounds

    this.chosen = /** @type {Spot | null} */ (null); // the token that is looked at
    this.pinned = false;
    this.everChosen = false;
    this.opened = /** @type {Set<number>} */ (new Set()); // rounds whose tree is shown
    this.everOpened = false;
  }
}
