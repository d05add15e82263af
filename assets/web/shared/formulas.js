// The closed forms, as in specviz/theory.

export const GAMMAS = Array.from({ length: 17 }, (_, gamma) => gamma); // 0 is plain decoding, the start of every curve

/**
 * Tokens per target pass, (1 − α^(γ+1)) / (1 − α): Leviathan et al. 2023, eq. 1.
 *
 * @param {number} alpha @param {number} gamma
 */
export function expectedTokens(alpha, gamma) {
  return alpha === 1 ? gamma + 1 : (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

/**
 * That over γc + V, Thm 3.8, whose V is 1; beside it V = T(γ+1)/T(1) as measured.
 *
 * @param {number} alpha @param {number} gamma @param {number} cost @param {number} [verification]
 */
export function expectedSpeedup(alpha, gamma, cost, verification = 1) {
  return expectedTokens(alpha, gamma) / (gamma * cost + verification);
}

/**
 * The γ from 0 to `longest` with the highest expected speedup.
 *
 * @param {number} alpha @param {number} cost @param {number} [longest]
 * @param {(gamma: number) => any} [verification]
 */
export function optimalGamma(alpha, cost, longest = 16, verification = () => 1) {
  const speedup = (gamma) => expectedSpeedup(alpha, gamma, cost, verification(gamma));
  return GAMMAS.slice(0, longest + 1).reduce((best, gamma) => (speedup(gamma) > speedup(best) ? gamma : best), 0);
}

/**
 * The least seconds of a pass over `width` tokens of each of `requests` requests: what it moves at the GPU's bandwidth,
 * or what it multiplies at its peak, whichever takes longer (Williams et al. 2009). Attention's own arithmetic is left out.
 *
 * @param {any} gpu GB a second, 10¹² operations a second, 10⁹ parameters of so many bytes, KB of keys and values a token
 * @param {number} requests @param {number} width
 */
export function rooflineSeconds({ bandwidth, peak, parameters, bytes, rows, context }, requests, width) {
  const moved = 1e9 * parameters * bytes + 1e3 * rows * requests * (context + width);
  return Math.max(moved / (1e9 * bandwidth), (2e9 * parameters * requests * width) / (1e12 * peak));
}

/**
 * T(width)/T(1) of a curve, a straight line between measured widths; null outside them.
 *
 * @param {any} curve @param {number} width
 */
export function passRatio(curve, width) {
  const points = curve?.points ?? [];
  const right = points.findIndex((point) => point.width >= width);
  if (right < 0 || points[0].width > width) return null;
  const [a, b] = [points[Math.max(0, right - 1)], points[right]];
  const share = a === b || b.width === width ? 1 : (width - a.width) / (b.width - a.width);
  return (a.seconds + share * (b.seconds - a.seconds)) / points[0].seconds;
}
