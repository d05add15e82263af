// <specviz-share>: the link to the run on the screen.
//
// Takes { kind: "share", share }: the link's query, file name and pair as records/links.py gives them, of the run that
// the page opens with; and { kind: "pair", pair }: the name of the page's own pair, once there is one. It follows
// the page's <specviz-run>. Fires `specviz-opened` when there is a pair for the link that the page was opened by, and
// `specviz-press` with { settings, press } for the controls to say what the run was made with.

import { make } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { keep } from "../shared/kept.js";
import { liveRun } from "../shared/live.js";
import { linkedRecording, linkedSpot, linkTo } from "../shared/spot.js";

const sheets = [await sheet(new URL("share.css", import.meta.url))];

class SpecvizShare extends SpecvizElement {
  static sheets = sheets;

  build() {
    const copy = make("button", { type: "button", class: "copy", text: this.say("share.copy"), on: { click: () => this.copy() } });
    this.box = make("input", { class: "link hidden", readonly: true, "aria-label": this.say("share.link"),
      on: { focus: () => this.box.select() } });
    this.status = make("p", { class: "status", role: "status", "aria-live": "polite" });
    const use = make("button", { type: "button", class: "use", text: this.say("share.use"), on: { click: () => this.use() } });
    this.shadow.append(copy, use, this.box, this.status);
  }

  connected() {
    this.listen(document, "specviz-share", (event) => this.follow(event.detail));
    this.listen(document, "specviz-finished", () => this.point());
    this.listen(document, "specviz-branch", (event) => {
      this.spot = event.detail;
    });
    /**
     * Where the page's address points, or where the next run branches off, until it has been shown.
     *
     * @type {ReturnType<typeof linkedSpot>}
     */
    this.spot = linkedSpot();
  }

  get handlers() {
    return {
      /** @param {any} message */
      share: ({ share }) => {
        this.share = liveRun()?.share ?? share;
      },
      /** @param {any} message */
      pair: ({ pair }) => {
        // Only now: the controls suit the pair, and what the link says comes after that.
        if (this.pair === undefined && location.search.length > 1) this.tell("specviz-opened");
        this.pair = pair;
      },
    };
  }

  /** A link that was copied is that of the run it was copied from: another run takes it away. @param {any} share */
  follow(share) {
    if (this.built && share.query !== this.share?.query) {
      this.box.classList.add("hidden");
      this.status.textContent = "";
    }
    this.share = share;
    // Of a visitor's own run, not of one that was recorded or opened: a reload brings its settings back (gradio/remote.js).
    if (!("recording" in share)) keep("settings", share.settings);
  }

  /** Has the page's controls say what the run was made with, a recorded or opened one too. */
  use() {
    const { settings } = this.share;
    if (settings) this.tell("specviz-press", { settings, press: null });
    this.box.classList.add("hidden");
    this.status.textContent = this.say(settings ? "share.used" : "share.no_settings");
  }

  /** Once the run that a link or a branch asks for is there: shows the token that it is about. */
  point() {
    const [run, spot] = [liveRun(), this.spot];
    if (!spot || !run || (run.recorded && run.share?.recording !== linkedRecording())) return;
    this.spot = null;
    const { round, index, predict, present } = spot;
    if (!run.has(spot)) {
      this.status.textContent = this.say("share.no_such_place", { n: run.rounds.length });
      return;
    }
    run.showAll(); // or the run would be shown from its beginning, where this round is still to come
    if (predict) run.predict(round);
    else run.choose(round, index ?? run.telling(round));
    if (present) run.present();
  }

  /** Puts the link onto the clipboard, and in any case into a box of which it can be copied by hand. */
  async copy() {
    const { share, pair, box, status } = this;
    box.classList.toggle("hidden", share.query === null);
    if (share.query === null) {
      status.textContent = this.say("share.too_long");
      return;
    }
    const spot = liveRun()?.pinned ?? null;
    box.value = linkTo(share.query, spot);
    box.focus();
    box.select();
    const other = pair === undefined || share.pair === pair ? "" : this.say("share.other_pair", { pair });
    const said = this.say((await copied(box.value)) ? "share.copied" : "share.by_hand");
    const there = spot ? this.say("share.points", { round: spot.round + 1 }) : "";
    status.textContent = [said, there, other].filter(Boolean).join(" ");
  }
}

/** @param {string} text */
async function copied(text) {
  if (!navigator.clipboard) return false; // browsers lend it to secure pages only
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // refused by the browser or its user
  }
}

customElements.define("specviz-share", SpecvizShare);
