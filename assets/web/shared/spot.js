// Links to the page, to a recorded run, and links that point into a run: at a round, or at one of its tokens. Both count
// from 1, as the page does.

/** @typedef {import("../run/types.js").Spot} Spot */

/**
 * A link to the page. On a Space it leads through the Space's page on the hub (`hub_link` in specviz/ui/components.py):
 * only there does a visitor's sign-in count. The hub hands the query on, but no path, so the query names the language.
 *
 * @param {string} query
 */
export function linkToPage(query) {
  const { hub } = document.documentElement.dataset;
  return hub ? `${hub}?${query}&lang=${document.documentElement.lang}` : `${location.origin}${location.pathname}?${query}`;
}

/**
 * The address on which a run's link stands; with a spot, the link points there.
 *
 * @param {string} query the link's, as records/links.py gives it
 * @param {{ round: number, index?: number | "next" } | null} spot without an index, the round
 */
export function linkTo(query, spot) {
  const token = spot?.index === undefined ? "" : `&token=${spot.index === "next" ? "next" : spot.index + 1}`;
  return linkToPage(`${query}${spot ? `&round=${spot.round + 1}${token}` : ""}`);
}

/**
 * Where the page's own address points: null where it points to no round; `index` is null where to no token. `predict`:
 * the round is still to be guessed; `present`: it is shown large.
 *
 * @returns {{ round: number, index: Spot["index"] | null, predict?: boolean, present?: boolean } | null}
 */
export function linkedSpot() {
  const asked = new URLSearchParams(location.search);
  const [round, token] = [asked.get("round"), asked.get("token")];
  if (round === null) return null;
  const index = token === null || token === "next" ? token : Number(token) - 1;
  return { round: Number(round) - 1, index, predict: asked.get("predict") === "1", present: asked.get("present") === "1" };
}

/** Names of a machine for itself: no other one can follow them. */
const OWN_NAMES = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];

/** True if no other machine can follow this link. @param {string} link */
export const isOwnName = (link) => OWN_NAMES.includes(new URL(link).hostname);

/** The recorded run that the page's own address names. */
export const linkedRecording = () => new URLSearchParams(location.search).get("recording");
