// What every element of specviz is, and how a page talks to it.
//
//   import "…/run/element.js";                        defines <specviz-run>
//   const view = document.createElement("specviz-run");
//   view.words = { "rounds.text": "Text", … };        the texts it says, by their keys; once
//   view.message = { kind: "start", … };              or view.receive({ … }): one message at a time, any number of them
//   view.addEventListener("specviz-finished", …);     what it has to tell: DOM events that bubble, with their `detail`
//
// Messages are those of specviz/views, in which { say: key, … } stands for a text; each element lists in its own file which kinds it takes, which events it fires
// and which properties show what it holds. An element draws into a shadow root with a style sheet of its own; colours
// are the --sv-… properties of colours.css. It knows nothing of the program that feeds it. Messages that come before the
// words wait for them.

import { writeDecimals } from "./numbers.js";
import { speaker, spoken } from "./words.js";

/** @typedef {{ kind: string, [field: string]: any }} Message */

/**
 * A style sheet beside a module: await sheet(new URL("run.css", import.meta.url)). Awaited while the module loads, so
 * that nothing is ever seen without its style.
 *
 * @param {URL} url
 */
export async function sheet(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return new CSSStyleSheet().replace(await answer.text());
}

/** Whatever is pressed is 24 px high at least, 44 in a narrow window. A wide table scrolls in its box, which fades where it is cut. Where the system forces its colours, what is drawn as a background keeps ours. */
const COMMON = new CSSStyleSheet();
COMMON.replaceSync(`button, select { min-height: 24px; }
.scroll { overflow-x: auto; scrollbar-width: thin; }
.scroll, .tree {
  mask: linear-gradient(to left, transparent, #000 32px) 0 0, linear-gradient(to right, transparent, #000 32px) 100% 0;
  mask-size: calc(100% + 32px) 100%; mask-repeat: no-repeat; mask-composite: intersect;
}
/* Elsewhere the animation would be over at once, as if the box were scrolled to its end. */
@supports (animation-timeline: scroll()) { .scroll, .tree { animation: cut linear both; animation-timeline: scroll(self inline); } }
@keyframes cut {
  from { mask-position: 100% 0, 100% 0; }
  10%, 90% { mask-position: 100% 0, 0 0; }
  to { mask-position: 0 0, 0 0; }
}
@media (max-width: 900px) {
  button, select, summary, input:not([type="checkbox"], [type="radio"]) { min-height: 44px; }
  label:has(> :is([type="checkbox"], [type="radio"])) { min-height: 44px; align-content: center; }
}
@media (forced-colors: active) {
  input, .track, .bars, .coin, .line, .u, .t { forced-color-adjust: none; }
  .icon, .go.play::before { forced-color-adjust: none; background: ButtonText; }
}`);

export class SpecvizElement extends HTMLElement {
  /** @type {CSSStyleSheet[]} */
  static sheets = [];
  /** Whether it shows what was measured of the pair in use, and nothing else: then it is emptied for another pair. */
  static measures = false;

  /** @type {Message[]} what came before the words */
  #early = [];
  /** @type {AbortController | null} ends the listening of `listen` when the element is taken off the page */
  #onPage = null;

  constructor() {
    super();
    this.shadow = this.attachShadow({ mode: "open" });
    this.shadow.adoptedStyleSheets = [...(/** @type {typeof SpecvizElement} */ (this.constructor).sheets), COMMON];
    /** @type {import("./words.js").Say} */
    this.say = () => "";
    this.built = false;
  }

  connectedCallback() {
    this.#onPage = new AbortController();
    this.connected();
    // Set before the element was defined, they hide the class's own properties.
    for (const name of ["words", "message"]) {
      if (!Object.hasOwn(this, name)) continue;
      const value = Reflect.get(this, name);
      Reflect.deleteProperty(this, name);
      Reflect.set(this, name, value);
    }
  }

  disconnectedCallback() {
    this.#onPage?.abort();
  }

  /** @param {Record<string, import("./words.js").Text>} texts */
  set words(texts) {
    if (this.built) return;
    this.say = speaker(texts);
    writeDecimals(this.say("common.decimal"));
    this.built = true;
    this.build();
    this.#early.splice(0).forEach((message) => this.receive(message));
  }

  /** @param {Message} message */
  set message(message) {
    this.receive(message);
  }

  /**
   * Takes a message; one of a kind that it does not know changes nothing.
   *
   * @param {Message} message
   */
  receive(message) {
    if (!this.built) this.#early.push(message);
    else if (message && Object.hasOwn(this.handlers, message.kind)) this.handlers[message.kind](spoken(message, this.say));
  }

  /**
   * Tells whoever listens, here or further up the page.
   *
   * @template {keyof import("./events.js").Events} Type
   * @param {Type} type
   * @param {import("./events.js").Events[Type]} [detail]
   */
  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { bubbles: true, composed: true, detail }));
  }

  /**
   * Listens to another part of the page for as long as the element is on it; called from `connected`.
   *
   * @template {keyof (DocumentEventMap & WindowEventMap)} Type
   * @param {Document | Window} target
   * @param {Type} type
   * @param {(event: (DocumentEventMap & WindowEventMap)[Type]) => void} handler
   */
  listen(target, type, handler) {
    target.addEventListener(type, /** @type {EventListener} */ (handler), { signal: this.#onPage?.signal });
  }

  // --- what each element brings ---------------------------------------------------------------------------------------

  /** Draws its skeleton; the words are there. */
  build() {}

  /** It is on a page; the words may not be there yet. */
  connected() {}

  /** What it does with a message, by the message's kind. @returns {Record<string, (message: Message) => void>} */
  get handlers() {
    return {};
  }
}
