// The colours of the heat map.

const STRONGEST = 45; // per cent of a heat map cell's hue; more would take the figures' contrast away
const FULL_SCALE = Math.log2(2.5); // the speedup, or slowdown, that has it

/** Blue is faster than plain decoding, amber slower; the figure says how much, so no colour has to be told apart. */
export function tint(speedup) {
  const distance = Math.log2(speedup) / FULL_SCALE;
  const share = Math.min(1, Math.abs(distance)) * STRONGEST;
  return `background: color-mix(in srgb, var(${distance < 0 ? "--sv-fix" : "--sv-bonus"}) ${share.toFixed(0)}%, var(--sv-card))`;
}
