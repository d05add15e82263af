// What the parts of the run view share: the run, what of it is drawn, where its reader is, and the nodes drawn into.

import { Run } from "./data.js";
import { AS_IT_WAS } from "./picture/suppose.js";

/** @typedef {import("../shared/words.js").Say} Say */
/** @typedef {import("./types.js").Spot} Spot */
/** @typedef {import("./types.js").Place} Place */
/** @typedef {import("./types.js").Piece} Piece */
/** @typedef {import("./types.js").Chunk} Chunk */

/**
 * What the bar, the keys and the presentation can do.
 *
 * @typedef {{ step(direction: number): void, goToStart(): void, goToEnd(): void, goToRound(count: number): void,
 *   watchAgain(): void, togglePlay(): void, openPresentation(): void, togglePredict(): void, guess(value: string | null): void }} Actions
 */

export class View {
  /** @type {any} the nodes drawn into, by what they show */
  ui = {};

  // When it was drawn, and whether it will be.
  scheduled = false;
  lastDraw = 0;

  drawn = 0; // rounds already on the page
  /** @type {Chunk[]} */
  chunks = [];
  /** @type {HTMLElement[][]} per round, the text's spans */
  spans = [];
  distance = { sum: 0, rounds: 0 }; // of a lossy rule, over the drawn rounds

  /** @type {Spot | null} the token that is looked at */
  chosen = null;
  pinned = false;
  everChosen = false;
  /** @type {Set<number>} rounds whose tree is shown */
  opened = new Set();
  everOpened = false;

  // The reader's place (place.js); null is the end, and behind it a live run.
  playback = {
    at: /** @type {Place | null} */ (null),
    playing: false,
    showing: false, // the run is shown at a reader's speed (playback/showing.js), or was being shown when it was paused
    speed: 1,
    unit: "token", // or "decision", "round": how far a step goes
    timer: 0,
    frame: 0,
    sums: [{ accepted: 0, judged: 0, holes: 0 }], // counts up to each round
    shown: /** @type {{ round: number, count: number } | null} */ (null), // how far the text was shown last
    unfolded: /** @type {number | null} */ (null), // the tree that playback unfolded
    telling: false, // a step goes stage by stage
    predicting: false,
    asking: /** @type {Place | null} */ (null), // the place beyond the reader's that is being guessed
    guesses: /** @type {Map<string, boolean | null>} */ (new Map()), // by place, whether it was right; null: only shown
  };

  pair = ""; // the name of the pair that the page uses; empty while nobody has said

  supposed = AS_IT_WAS;

  picture = {
    piece: /** @type {Piece | null} */ (null), // what the camera is close to; null: the whole round
    token: "", // whose close-up was drawn last
  };

  presentation = { open: false, drawn: "", before: /** @type {any} */ (null), piece: /** @type {Piece | null} */ (null), left: /** @type {Promise<void> | null} */ (null), homes: /** @type {any[]} */ ([]) };

  /** @param {HTMLElement} host @param {ShadowRoot} shadow @param {Say} say */
  constructor(host, shadow, say) {
    this.host = host;
    this.shadow = shadow;
    this.say = say;
    this.run = new Run(say, null);
  }

  /** What plays stops where it is: its reader has pointed at something, or moves by hand. */
  pause() {
    clearTimeout(this.playback.timer);
    this.playback.playing = false;
  }

  /** Another run: what was chosen and unfolded belonged to the last one. `redraw` empties the page. @param {string} key */
  begin(key) {
    this.run = new Run(this.say, key);
    Object.assign(this, { chosen: null, pinned: false, everChosen: false, opened: new Set(), everOpened: false, supposed: AS_IT_WAS });
  }
}
