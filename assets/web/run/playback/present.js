// Presentation: the picture over the whole window, large enough for the back row, with the bar and the figures that stand
// around it on the page.

import { make } from "../../shared/dom.js";
import { lastPlace } from "../place.js";
import { drawPicture, zoomOut } from "../picture/picture.js";
import { qrParts } from "./qr.js";

/** @typedef {import("../view.js").View} View */

/** @param {View} view */
export function buildPresentation(view) {
  const { ui } = view;
  ui.dialog = make("dialog", { class: "presentation", part: "presentation", "aria-label": view.say("playback.presentation"), on: { close: () => onPresentationClosed(view), keydown: (/** @type {KeyboardEvent} */ event) => onEscape(view, event) } },
    make("div", { class: "head" }, ...qrParts(view),
      make("button", { type: "button", class: "go", part: "present-close", text: view.say("playback.close"), on: { click: () => ui.dialog.close() } })));
  ui.view.append(ui.dialog);
  // Escape leads out of a full screen before any page hears of it: of a close-up first, as everywhere.
  document.addEventListener("fullscreenchange", () => {
    if (document.fullscreenElement || !ui.dialog.open) return;
    if (view.picture.piece !== null) zoomOut(view);
    else ui.dialog.close();
  });
  // The tab before: the page behind an open dialog takes no clicks.
  window.addEventListener("popstate", () => ui.dialog.close());
}

/** Opens with the whole round. @param {View} view */
export async function openPresentation(view) {
  const { ui, presentation } = view;
  if (presentation.open || !view.drawn) return;
  Object.assign(presentation, { open: true, before: view.shadow.activeElement, piece: view.picture.piece, drawn: "" });
  try {
    await presentation.left; // or that change would close it again
    // The page that frames this one may not lend it the screen.
    if (document.fullscreenEnabled) await document.documentElement.requestFullscreen();
  } catch {
    // Refused by the browser: the window will do.
  }
  // Only now: what enters the top layer last lies on top.
  ui.dialog.showModal();
  const lent = [ui.place, ui.top, ui.picture, ui.transport, ui.suppose];
  presentation.homes = lent.map((node) => ({ node, parent: node.parentNode, next: node.nextSibling }));
  ui.dialog.firstElementChild.prepend(ui.place, ui.top);
  ui.dialog.append(ui.picture, ui.transport);
  ui.choices.after(ui.suppose);
  view.picture.piece = null;
  ui.play.focus();
  drawPresentation(view);
}

/** Out of a close-up first, wherever the focus is. @param {View} view @param {KeyboardEvent} event */
function onEscape(view, event) {
  if (event.key !== "Escape" || view.picture.piece === null) return;
  zoomOut(view);
  event.preventDefault();
}

/** @param {View} view */
function onPresentationClosed(view) {
  const { ui, presentation } = view;
  presentation.open = false;
  view.picture.piece = presentation.piece;
  for (const { node, parent, next } of presentation.homes.reverse()) parent.insertBefore(node, next);
  drawPicture(view);
  presentation.left = document.fullscreenElement ? document.exitFullscreen() : null;
  (presentation.before ?? ui.present).focus({ preventScroll: true });
}

/** Each place is drawn once: what is read, or moved, is not drawn anew beneath the reader. @param {View} view */
export function drawPresentation(view) {
  if (!view.ui.dialog?.open) return;
  const { at, asking, predicting } = view.playback;
  const { round, stage } = at ?? lastPlace(view);
  const drawn = [view.run.key, round, stage, at === null, asking?.stage, predicting, view.run.phase].join(" ");
  if (view.presentation.drawn !== drawn) drawPicture(view);
  view.presentation.drawn = drawn;
}
