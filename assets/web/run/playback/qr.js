// The link to the round on the screen as a QR code, for the phones of a class. The page's server draws it
// (specviz/ui/routes/qr.py), so that it needs no network and no link leaves the room for it.

import { make, setText } from "../../shared/dom.js";
import { isOwnName, linkTo } from "../../shared/spot.js";
import { lastPlace } from "../place.js";

/** @typedef {import("../view.js").View} View */

/** The button, and the panel that it opens. @param {View} view */
export function qrParts(view) {
  const { say } = view;
  const told = make("p", { part: "qr-told", role: "status" });
  const picture = make("img", { part: "qr-picture", alt: say("playback.qr_alt"), on: {
    load: () => picture.classList.remove("hidden"),
    error: () => setText(told, say("playback.qr_too_long")),
  } });
  const panel = make("div", { class: "qr", part: "qr", popover: "auto" }, told);
  const open = () => {
    const { round } = view.playback.at ?? lastPlace(view);
    const query = /** @type {import("../element.js").SpecvizRun} */ (view.host).share?.query ?? null;
    const link = query === null ? null : linkTo(query, { round });
    picture.classList.add("hidden");
    panel.prepend(picture); // only now: a page that nobody asked for a code holds no picture
    if (link === null) setText(told, say("playback.qr_none"));
    else if (isOwnName(link)) setText(told, say("playback.qr_own", { host: location.host })); // no phone could follow it
    else {
      setText(told, say("playback.qr_told", { round: round + 1 }));
      picture.src = new URL(`../../../qr?${new URLSearchParams({ text: link })}`, import.meta.url).href;
    }
    panel.showPopover();
  };
  const button = make("button", { type: "button", class: "go", part: "qr-button", text: say("playback.qr_button"), "aria-label": say("playback.qr"), on: { click: open } });
  return [button, panel];
}
