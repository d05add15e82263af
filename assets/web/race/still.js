// A race on a sheet, for a picture or a clip of it: both lanes at one time of the recorded clock.

import { EDGE, WIDTH } from "../moment/canvas.js";
import { fixed, rate } from "../shared/numbers.js";
import { onOneLine } from "../shared/tokens.js";

const FULL = WIDTH - 2 * EDGE;
const PLAY = 8; // seconds from the start to the end

/** @param {any} race the element @param {import("../moment/canvas.js").Sheet} sheet @returns {import("../moment/moment.js").Scene | null} */
export function raceScene(race, sheet) {
  const draw = (/** @type {number} */ time) => drawRace(race, sheet, time);
  return { name: "specviz-race", label: race.say("race.tab"), seconds: PLAY, still: () => draw(race.clock), at: (second) => draw(race.end * second / PLAY) };
}

/** @param {any} race @param {import("../moment/canvas.js").Sheet} sheet @param {number} time */
function drawRace(race, sheet, time) {
  const { say, held: { lanes, made } } = race;
  sheet.clear([lanes[1].label, made].filter(Boolean).join(", "));
  sheet.text(`${fixed(time, 2)}\u202fs ${say("race.seconds")}`, EDGE + FULL, 58, { size: 26, bold: true, align: "right" });
  lanes.forEach((/** @type {any} */ lane, /** @type {number} */ i) => {
    const top = 72 + 280 * i;
    const { tokens, passes, speed, done } = race.stand(lane, time);
    sheet.text(say(`race.${i ? "speculative" : "plain"}`), EDGE, top + 24, { size: 23, bold: true });
    if (done && race.winner === i) sheet.text(say("race.faster"), EDGE + FULL, top + 24, { bold: true, colour: "ok", align: "right" });
    sheet.box(EDGE, top + 44, FULL, 26, { fill: "line", radius: 6 });
    sheet.box(EDGE, top + 44, FULL * tokens / (lane.tokens || 1), 26, { fill: i ? "ok" : "plain", radius: 6 });
    const counts = [[tokens, "tokens"], [passes, "target_passes"], [speed === null ? "—" : rate(speed), "tokens_per_second"]];
    sheet.text(counts.map(([count, name]) => `${count} ${say(`race.${name}`)}`).join(" · "), EDGE, top + 100, { size: 19, colour: "soft", width: FULL });
    const type = /** @type {const} */ ({ size: 23, font: "serif", width: FULL });
    const text = onOneLine(say, lane.pieces.slice(0, tokens).join("").slice(-400));
    sheet.lines(text, FULL, type).slice(-3).forEach(([from, to], line) => sheet.text(text.slice(from, to).trimEnd(), EDGE, top + 142 + 34 * line, type));
  });
  if (time >= race.end) sheet.paragraph(race.verdictLines(...lanes)[0], 630);
}
