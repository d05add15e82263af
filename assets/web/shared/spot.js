// Links to a recorded run, and links that point into a run: at a round, or at one of its tokens. Both count from 1, as
// the page does.

/** @typedef {import("../run/types.js").Spot} Spot */

/**
 * The address on which a run's link stands; with a spot, the link points there.
 *
 * @param {string} query the link's, as records/links.py gives it
 * @param {{ round: number, index?: number | "next" } | null} spot without an index, the round
 */
export function linkTo(query, spot) {
  const token = spot?.index === undefined ? "" : `&token=${spot.index === "next" ? "next" : spot.index + 1}`;
  return `${location.origin}${location.pathname}?${query}${spot ? `&round=${spot.round + 1}${token}` : ""}`;
}

/**
 * Where the page's own address points: null where it points to no round; `index` is null where to no token.
 *
 * @returns {{ round: number, index: Spot["index"] | null } | null}
 */
export function linkedSpot() {
  const asked = new URLSearchParams(location.search);
  const [round, token] = [asked.get("round"), asked.get("token")];
  if (round === null) return null;
  const index = token === null || token === "next" ? token : Number(token) - 1;
  return { round: Number(round) - 1, index };
}

/** Names of a machine for itself: no other one can follow them. */
const OWN_NAMES = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];

/** @param {string} host */
export const isOwnName = (host) => OWN_NAMES.includes(host);

/** The recorded run that the page's own address names. */
export const linkedRecording = () => new URLSearchParams(location.search).get("recording");
