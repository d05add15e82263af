// torch's generator for the CPU: from the same seed come the same coins, bit for bit.

const [SIZE, SHIFT] = [624, 397]; // words of the state, and how far back the recurrence reaches

/** The Mersenne Twister. Matsumoto & Nishimura 1998, doi 10.1145/272991.272995. */
export class TorchGenerator {
  #state = new Uint32Array(SIZE);
  #next = SIZE;

  /** @param {number} seed a whole number from 0; as in torch its lowest 32 bits count */
  constructor(seed) {
    const state = this.#state;
    state[0] = seed;
    for (let i = 1; i < SIZE; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  }

  /** A float32 from 0 to below 1, of 24 random bits, as `torch.rand` draws it. */
  uniform() {
    if (this.#next === SIZE) this.#refill();
    let word = this.#state[this.#next++];
    word ^= word >>> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    word ^= word >>> 18;
    return (word & 0xffffff) / 2 ** 24;
  }

  #refill() {
    const state = this.#state;
    for (let i = 0; i < SIZE; i++) {
      const joined = (state[i] & 0x80000000) | (state[(i + 1) % SIZE] & 0x7fffffff);
      state[i] = state[(i + SHIFT) % SIZE] ^ (joined >>> 1) ^ (joined & 1 ? 0x9908b0df : 0);
    }
    this.#next = 0;
  }
}
