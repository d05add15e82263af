// "Share this moment": what a view can draw on a sheet, as a picture or a clip. Both are made here, in the browser.
// A clip is filmed while it plays, so a ten-second clip takes ten seconds.

import { HEIGHT, Sheet, WIDTH } from "./canvas.js";
import { make, setText } from "../shared/dom.js";
import { sheet } from "../shared/element.js";

/**
 * Something to be shared: the file's name without its ending, what it shows in words, the moment itself, and how long its
 * clip is and how that looks at each second.
 *
 * @typedef {{ name: string, label: string, still: () => void, seconds: number, at: (second: number) => void }} Scene
 */

export const momentStyle = await sheet(new URL("moment.css", import.meta.url));

const FRAMES = 20; // a second
const HOLD = 1.5; // seconds that a clip's last frame stays: a slow encoder may lose the last ones

/** The kind of clip that this browser makes, if any. */
const CLIP = ["video/webm", "video/mp4"].find((type) => window.MediaRecorder?.isTypeSupported(type));

/**
 * The button, and the panel that it opens: a preview, and what can be saved.
 *
 * @param {import("../shared/words.js").Say} say @param {HTMLElement} host  lends its colours
 * @param {(sheet: Sheet) => Scene | null} take  what there is to share now; null: nothing
 * @param {string} [look]  the button's class
 */
export function momentParts(say, host, take, look) {
  const canvas = make("canvas", { role: "img", width: WIDTH, height: HEIGHT });
  const told = make("p", { part: "moment-told", role: "status" });
  const picture = make("button", { type: "button", part: "moment-picture", text: say("moment.picture") });
  const clip = make("button", { type: "button", part: "moment-clip", class: CLIP ? null : "hidden", text: say("moment.clip") });
  const panel = make("div", { class: "moment", part: "moment", popover: "auto" }, canvas, told, make("div", { class: "ways" }, picture, clip));
  const button = make("button", { type: "button", class: look, part: "moment-open", title: say("moment.about"), "aria-label": say("moment.about") }, make("span", { class: "moment-sign", "aria-hidden": "true" }));
  button.popoverTargetElement = panel;
  /** @type {Scene | null} */
  let scene = null;
  let filming = new AbortController();
  const free = (/** @type {boolean} */ yes) => { for (const node of [picture, clip]) node.disabled = !yes; };
  panel.addEventListener("beforetoggle", (/** @type {ToggleEvent} */ event) => {
    filming.abort(); // whoever closes the panel wants no clip
    if (event.newState !== "open") return;
    scene = take(new Sheet(host, canvas));
    scene?.still();
    canvas.setAttribute("aria-label", scene?.label ?? "");
    canvas.classList.toggle("hidden", !scene);
    free(scene !== null);
    setText(told, scene ? say(CLIP ? "moment.how" : "moment.no_clip") : say("moment.nothing"));
  });
  picture.addEventListener("click", () => canvas.toBlob((/** @type {Blob | null} */ blob) => hand(blob, `${scene?.name}.png`)));
  clip.addEventListener("click", async () => {
    if (!scene) return;
    filming = new AbortController();
    free(false);
    const { name, still, seconds, at } = scene;
    const film = await filmed(canvas, seconds + HOLD, filming.signal, (second) => {
      at(Math.min(second, seconds));
      setText(told, say("moment.filming", { n: Math.ceil(seconds + HOLD - second) }));
    });
    if (filming.signal.aborted) return;
    still();
    free(true);
    setText(told, say("moment.filmed"));
    hand(film, `${name}.${CLIP?.slice("video/".length)}`);
  });
  return [button, panel];
}

/** @param {HTMLCanvasElement} canvas @param {number} seconds @param {AbortSignal} signal @param {(second: number) => void} draw @returns {Promise<Blob>} */
function filmed(canvas, seconds, signal, draw) {
  const recorder = new MediaRecorder(canvas.captureStream(FRAMES), { mimeType: CLIP, videoBitsPerSecond: 4e6 });
  /** @type {Blob[]} */
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const done = new Promise((resolve) => { recorder.onstop = () => resolve(new Blob(parts, { type: CLIP })); });
  recorder.start();
  const begun = performance.now();
  const next = () => {
    const second = (performance.now() - begun) / 1000;
    if (second > seconds || signal.aborted) return recorder.stop();
    draw(second);
    setTimeout(next, 1000 / FRAMES);
  };
  next();
  return done;
}

/** Saves a file. @param {Blob | null} blob @param {string} name */
export function hand(blob, name) {
  if (!blob) return;
  const href = URL.createObjectURL(blob);
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
