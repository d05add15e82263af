// A Llama in bfloat16: its weights from safetensors files, its forward pass, and what it has read of a text.

/** @typedef {import("./kernels.js").Kernels} Kernels */
/** @typedef {import("./kernels.js").Address} Address */
/** @typedef {{ config: string, files: string[] }} Place where a model lies: addresses of its configuration and weights */

/** Tokens of the largest pass: γ = 8, and the one before it. Longer texts are read in several passes. */
export const MOST_ROWS = 9;

/** A model's weights, and room for the values of one pass. All sizes are those of its configuration. */
export class Llama {
  /** @param {Kernels} kernels @param {Record<string, any>} config @param {Map<string, Address>} tensors */
  constructor(kernels, config, tensors) {
    const { hidden_size: width, num_attention_heads: heads, intermediate_size: inner, max_position_embeddings: positions } = config;
    const weight = (/** @type {string} */ name) => /** @type {Address} */ (tensors.get(`${name}.weight`));
    const wide = (/** @type {string} */ name) => {
      const [at, from] = [kernels.reserveFloats(width), weight(name)];
      kernels.run.widen(at, from, 0, width);
      return at;
    };

    this.kernels = kernels;
    this.width = width;
    this.heads = heads;
    this.size = config.head_dim; // of a head
    this.inner = inner;
    this.positions = positions;
    this.vocabulary = config.vocab_size;
    this.epsilon = config.rms_norm_eps;
    this.embeddings = weight("model.embed_tokens"); // also the head: the two are tied
    this.norm = wide("model.norm");
    this.layers = Array.from({ length: config.num_hidden_layers }, (_, i) => {
      const [attention, mlp] = [`model.layers.${i}.self_attn`, `model.layers.${i}.mlp`];
      return {
        attentionNorm: wide(`model.layers.${i}.input_layernorm`), mlpNorm: wide(`model.layers.${i}.post_attention_layernorm`),
        q: weight(`${attention}.q_proj`), k: weight(`${attention}.k_proj`), v: weight(`${attention}.v_proj`), o: weight(`${attention}.o_proj`),
        gate: weight(`${mlp}.gate_proj`), up: weight(`${mlp}.up_proj`), down: weight(`${mlp}.down_proj`),
      };
    });
    const row = (/** @type {number} */ count) => kernels.reserveFloats(MOST_ROWS * count);
    this.room = { x: row(width), h: row(width), q: row(width), y: row(width), gate: row(inner), up: row(inner),
      logits: row(config.vocab_size), scores: kernels.reserveFloats(positions + 4) };
    this.angles = this.#angles(config.rope_parameters.rope_theta);
  }

  /** @param {Kernels} kernels @param {Place} place @param {(bytes: number) => void} onBytes hears of each piece that came */
  static async load(kernels, { config, files }, onBytes) {
    const tensors = new Map();
    for (const file of files) await loadTensors(kernels, file, tensors, onBytes);
    return new Llama(kernels, await (await fetch(config)).json(), tensors);
  }

  /** Cosine and sine of every position's angles, [positions, size / 2]; rounded as torch rounds them. @param {number} base */
  #angles(base) {
    const { kernels, positions } = this;
    const [half, round] = [this.size / 2, Math.fround];
    const places = [kernels.reserveFloats(positions * half), kernels.reserveFloats(positions * half)];
    const [cos, sin] = places.map((at) => kernels.floats(at, positions * half));
    for (let i = 0; i < half; i++) {
      const frequency = round(1 / round(base ** (i / half)));
      for (let position = 0; position < positions; position++) {
        const angle = round(position * frequency);
        cos[position * half + i] = Math.cos(angle);
        sin[position * half + i] = Math.sin(angle);
      }
    }
    return places;
  }

  /**
   * One pass over `ids`, which follow what the cache holds; their keys and values go there.
   *
   * @param {Cache} cache
   * @param {readonly number[]} ids up to `MOST_ROWS`
   * @param {number} keep how many of the last rows of logits are wanted
   * @returns {Float32Array[]} [keep] rows of logits, [vocabulary] each
   */
  forward(cache, ids, keep) {
    const { kernels, width, heads, inner, size, epsilon, vocabulary, room: { x, h, q, y, gate, up, logits, scores } } = this;
    const [{ run }, rows, before, half] = [kernels, ids.length, cache.length, size / 2];
    const [cos, sin] = this.angles.map((at) => at + 4 * before * half);
    ids.forEach((id, row) => run.widen(x + 4 * row * width, this.embeddings, id, width));
    this.layers.forEach((layer, i) => {
      run.rms_norm(h, x, layer.attentionNorm, rows, width, epsilon);
      const [keys, values] = [cache.keys[i], cache.values[i]];
      const [newKeys, newValues] = [keys, values].map((at) => at + 4 * before * width);
      run.matmul(q, h, layer.q, rows, width, width);
      run.matmul(newKeys, h, layer.k, rows, width, width);
      run.matmul(newValues, h, layer.v, rows, width, width);
      run.rotate(q, cos, sin, rows, heads, half);
      run.rotate(newKeys, cos, sin, rows, heads, half);
      run.attend(h, q, keys, values, scores, rows, before, heads, size);
      run.matmul(y, h, layer.o, rows, width, width);
      run.add(x, y, rows * width);

      run.rms_norm(h, x, layer.mlpNorm, rows, width, epsilon);
      run.matmul(gate, h, layer.gate, rows, width, inner);
      run.matmul(up, h, layer.up, rows, width, inner);
      run.gated(gate, up, rows * inner);
      run.matmul(y, gate, layer.down, rows, inner, width);
      run.add(x, y, rows * width);
    });
    cache.length += rows;
    if (!keep) return [];
    run.rms_norm(h, x + 4 * (rows - keep) * width, this.norm, keep, width, epsilon);
    run.matmul(logits, h, this.embeddings, keep, width, vocabulary);
    return Array.from({ length: keep }, (_, row) => kernels.floats(logits + 4 * row * vocabulary, vocabulary).slice());
  }
}

/** What a model has read of one text: keys and values, and how many tokens. */
class Cache {
  length = 0;

  /** @param {Llama} model */
  constructor({ kernels, layers, positions, width }) {
    this.keys = layers.map(() => kernels.reserveFloats(positions * width));
    this.values = layers.map(() => kernels.reserveFloats(positions * width));
  }
}

/** A model that reads one text, token by token, and can forget its end. It holds at most the committed tokens less one. */
export class Reader {
  /** @param {Llama} model */
  constructor(model) {
    this.model = model;
    this.cache = new Cache(model);
  }

  /**
   * Reads what it lacks of a text.
   *
   * @param {readonly number[]} text longer than what was read
   * @param {number} rows how many rows of logits are wanted, up to `MOST_ROWS`
   * @returns {Float32Array[]} the logits after each of the last `rows` tokens
   */
  read(text, rows) {
    let until = this.cache.length + ((text.length - this.cache.length) % MOST_ROWS || MOST_ROWS);
    for (; until < text.length; until += MOST_ROWS) this.model.forward(this.cache, text.slice(this.cache.length, until), 0);
    return this.model.forward(this.cache, text.slice(this.cache.length), rows);
  }

  /** Forgets all but the first `length` tokens. @param {number} length */
  keep(length) {
    this.cache.length = Math.min(this.cache.length, length);
  }
}

/**
 * Adds a safetensors file's tensors: eight bytes say how long its header is, JSON with each tensor's place among the bytes
 * behind it.
 *
 * @param {Kernels} kernels @param {string} file its address @param {Map<string, Address>} tensors
 * @param {(bytes: number) => void} onBytes
 */
async function loadTensors(kernels, file, tensors, onBytes) {
  const answer = await fetch(file);
  if (!answer.ok || !answer.body) throw new Error(`${file}: ${answer.status}`);
  const pieces = [];
  for (let reader = answer.body.getReader(), next; !(next = await reader.read()).done; ) {
    pieces.push(next.value);
    onBytes(next.value.length);
  }
  const content = await new Blob(pieces).arrayBuffer();
  const start = 8 + Number(new DataView(content).getBigUint64(0, true));
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(content.slice(8, start)));
  for (const [name, { data_offsets: [from, to] }] of Object.entries(header)) {
    const at = kernels.reserve(to - from);
    kernels.bytes(at, to - from).set(new Uint8Array(content, start + from, to - from));
    tensors.set(name, at);
  }
}
