// The kernels of kernels.c and the one memory in which they work: weights, caches and intermediate values, by address.

/** @typedef {number} Address a place in that memory, in bytes */

/**
 * What kernels.c says of each.
 *
 * @typedef {{
 *   matmul(out: Address, x: Address, w: Address, rows: number, width: number, outWidth: number): void,
 *   widen(out: Address, table: Address, id: number, width: number): void,
 *   add(x: Address, y: Address, count: number): void,
 *   rms_norm(out: Address, x: Address, weight: Address, rows: number, width: number, epsilon: number): void,
 *   rotate(x: Address, cos: Address, sin: Address, rows: number, heads: number, half: number): void,
 *   gated(gate: Address, up: Address, count: number): void,
 *   attend(out: Address, q: Address, keys: Address, values: Address, scores: Address, rows: number, before: number, heads: number, size: number): void,
 * }} Operations
 */

const PAGE = 2 ** 16; // bytes by which the memory grows

export class Kernels {
  /** @param {WebAssembly.Exports} exports */
  constructor(exports) {
    this.run = /** @type {Operations} */ (/** @type {unknown} */ (exports));
    this.memory = /** @type {WebAssembly.Memory} */ (exports.memory);
    /** @type {Address} where nothing lies yet */
    this.free = /** @type {WebAssembly.Global} */ (exports.__heap_base).value;
  }

  static async load() {
    const answer = await fetch(new URL("kernels.wasm", import.meta.url));
    const { instance } = await WebAssembly.instantiate(await answer.arrayBuffer());
    return new Kernels(instance.exports);
  }

  /** Room for that many bytes, which is never given back. @param {number} bytes @returns {Address} */
  reserve(bytes) {
    const place = this.free;
    this.free += Math.ceil(bytes / 16) * 16;
    const lacking = this.free - this.memory.buffer.byteLength;
    if (lacking > 0) this.memory.grow(Math.ceil(lacking / PAGE));
    return place;
  }

  /** Room for that many float32 values. @param {number} count */
  reserveFloats(count) {
    return this.reserve(4 * count);
  }

  /** What lies there, until the memory grows. @param {Address} at @param {number} count */
  floats(at, count) {
    return new Float32Array(this.memory.buffer, at, count);
  }

  /** @param {Address} at @param {number} count */
  bytes(at, count) {
    return new Uint8Array(this.memory.buffer, at, count);
  }
}
