// The arithmetic of a Llama's forward pass for a few rows at once, for WebAssembly with 128-bit vectors.
//
// Weights stay as they lie in the file, in bfloat16, and are widened in registers, which is exact; all else is float32. A
// row's numbers never depend on which other rows are in the pass: each sum is taken in the same order for any number of
// rows, so a pass over several tokens gives bit for bit what single passes give. `python -m tools.static_kernels` builds.

#include <stdint.h>
#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bfloat16;

INLINE float total(v128_t v) {
  return wasm_f32x4_extract_lane(v, 0) + wasm_f32x4_extract_lane(v, 1) + wasm_f32x4_extract_lane(v, 2) + wasm_f32x4_extract_lane(v, 3);
}

INLINE v128_t add_product(v128_t sum, v128_t a, v128_t b) { return wasm_f32x4_add(sum, wasm_f32x4_mul(a, b)); }

// --- matrices ---------------------------------------------------------------------------------------------------------

// `outputs` columns of out [rows, out_width] from x [rows, width] and as many rows of w [·, width]. Both counts are known
// when this is compiled, so that all sums stay in registers.
INLINE void columns(float *out, const float *x, const bfloat16 *w, int width, int out_width, const int rows, const int outputs) {
  const v128_t zero = wasm_i32x4_const_splat(0);
  v128_t sums[rows * outputs];
#pragma unroll
  for (int i = 0; i < rows * outputs; i++) sums[i] = zero;
  for (int k = 0; k < width; k += 8) {
#pragma unroll
    for (int o = 0; o < outputs; o++) {
      const v128_t eight = wasm_v128_load(w + o * width + k);
      // A bfloat16 is the upper half of a float32.
      const v128_t low = wasm_i16x8_shuffle(zero, eight, 0, 8, 1, 9, 2, 10, 3, 11);
      const v128_t high = wasm_i16x8_shuffle(zero, eight, 4, 12, 5, 13, 6, 14, 7, 15);
#pragma unroll
      for (int r = 0; r < rows; r++) {
        v128_t *sum = &sums[r * outputs + o];
        *sum = add_product(*sum, low, wasm_v128_load(x + r * width + k));
        *sum = add_product(*sum, high, wasm_v128_load(x + r * width + k + 4));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < rows; r++)
#pragma unroll
    for (int o = 0; o < outputs; o++) out[r * out_width + o] = total(sums[r * outputs + o]);
}

#define CASE(count)                                                                                                    \
  case count: columns(out + r * out_width + o, x + r * width, w + o * width, width, out_width, count, 2); break;

// out [rows, out_width] = x [rows, width] · wᵀ, w [out_width, width]; width divides by 8, out_width by 2. Four rows at a
// time, whose sums fit into 16 registers; for the next four, two rows of w still lie in the nearest cache.
EXPORT(matmul) void matmul(float *out, const float *x, const bfloat16 *w, int rows, int width, int out_width) {
  for (int o = 0; o < out_width; o += 2)
    for (int r = 0; r < rows; r += 4)
      switch (rows - r < 4 ? rows - r : 4) {
        CASE(1) CASE(2) CASE(3) CASE(4)
      }
}

// Row `id` of a table [·, width] as float32.
EXPORT(widen) void widen(float *out, const bfloat16 *table, int id, int width) {
  for (int i = 0; i < width; i++) ((uint32_t *)out)[i] = (uint32_t)table[id * width + i] << 16;
}

// --- what lies between them -------------------------------------------------------------------------------------------

// x += y
EXPORT(add) void add(float *x, const float *y, int count) {
  for (int i = 0; i < count; i += 4) wasm_v128_store(x + i, wasm_f32x4_add(wasm_v128_load(x + i), wasm_v128_load(y + i)));
}

// x / √(mean(x²) + ε) · weight, row by row. Zhang & Sennrich 2019, arXiv 1910.07467.
EXPORT(rms_norm) void rms_norm(float *out, const float *x, const float *weight, int rows, int width, float epsilon) {
  for (int r = 0; r < rows; r++, x += width, out += width) {
    v128_t squares = wasm_i32x4_const_splat(0);
    for (int i = 0; i < width; i += 4) squares = add_product(squares, wasm_v128_load(x + i), wasm_v128_load(x + i));
    const v128_t scale = wasm_f32x4_splat(1.0f / __builtin_sqrtf(total(squares) / width + epsilon));
    for (int i = 0; i < width; i += 4)
      wasm_v128_store(out + i, wasm_f32x4_mul(wasm_v128_load(weight + i), wasm_f32x4_mul(wasm_v128_load(x + i), scale)));
  }
}

// Turns each head's halves (a, b) into (a·cos − b·sin, b·cos + a·sin). Su et al. 2021, arXiv 2104.09864, in the layout
// of the Llama checkpoints. x: [rows, heads · 2 · half]; cos, sin: [rows, half].
EXPORT(rotate) void rotate(float *x, const float *cos, const float *sin, int rows, int heads, int half) {
  for (int r = 0; r < rows; r++, cos += half, sin += half)
    for (int h = 0; h < heads; h++, x += 2 * half)
      for (int i = 0; i < half; i += 4) {
        const v128_t a = wasm_v128_load(x + i), b = wasm_v128_load(x + half + i);
        const v128_t c = wasm_v128_load(cos + i), s = wasm_v128_load(sin + i);
        wasm_v128_store(x + i, wasm_f32x4_sub(wasm_f32x4_mul(a, c), wasm_f32x4_mul(b, s)));
        wasm_v128_store(x + half + i, wasm_f32x4_add(wasm_f32x4_mul(b, c), wasm_f32x4_mul(a, s)));
      }
}

// eˣ in float32, to within 2 units in the last place: x = n·ln 2 + r, then the series of eʳ, then 2ⁿ. Beneath −87 it
// is 0; arguments are never positive here by more than rounding, or are bounded as in `gate`.
INLINE v128_t exponential(v128_t x) {
  const v128_t shown = wasm_f32x4_ge(x, wasm_f32x4_splat(-87.0f));
  x = wasm_f32x4_pmin(wasm_f32x4_splat(88.0f), wasm_f32x4_pmax(wasm_f32x4_splat(-87.0f), x));
  const v128_t n = wasm_f32x4_nearest(wasm_f32x4_mul(x, wasm_f32x4_splat(1.44269504f)));
  // ln 2 in two parts, the first short enough for n times it to be exact.
  v128_t r = wasm_f32x4_sub(x, wasm_f32x4_mul(n, wasm_f32x4_splat(0.693359375f)));
  r = wasm_f32x4_sub(r, wasm_f32x4_mul(n, wasm_f32x4_splat(-2.12194440e-4f)));
  v128_t series = wasm_f32x4_splat(1.0f / 5040);
  const float terms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 7; i++) series = add_product(wasm_f32x4_splat(terms[i]), series, r);
  const v128_t power = wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(127)), 23);
  return wasm_v128_and(shown, wasm_f32x4_mul(series, power));
}

// gate = silu(gate) · up, with silu(x) = x / (1 + e⁻ˣ). Shazeer 2020, arXiv 2002.05202.
EXPORT(gated) void gated(float *gate, const float *up, int count) {
  const v128_t one = wasm_f32x4_splat(1.0f);
  for (int i = 0; i < count; i += 4) {
    const v128_t x = wasm_v128_load(gate + i);
    const v128_t silu = wasm_f32x4_div(x, wasm_f32x4_add(one, exponential(wasm_f32x4_neg(x))));
    wasm_v128_store(gate + i, wasm_f32x4_mul(silu, wasm_v128_load(up + i)));
  }
}

// --- attention --------------------------------------------------------------------------------------------------------

INLINE float dot(const float *a, const float *b, int count) {
  v128_t sum = wasm_i32x4_const_splat(0);
  for (int i = 0; i < count; i += 4) sum = add_product(sum, wasm_v128_load(a + i), wasm_v128_load(b + i));
  return total(sum);
}

// Softmax of `count` scores in place; writes zeros behind them up to a multiple of 4.
INLINE void softmax(float *scores, int count) {
  float most = scores[0], sum = 0;
  for (int i = 1; i < count; i++) most = scores[i] > most ? scores[i] : most;
  for (int i = 0; i < count; i += 4) wasm_v128_store(scores + i, exponential(wasm_f32x4_sub(wasm_v128_load(scores + i), wasm_f32x4_splat(most))));
  for (int i = 0; i < count; i++) sum += scores[i];
  for (int i = 0; i < count; i++) scores[i] /= sum;
}

// For each row and head the mean of the values, weighted by softmax(q·k / √size). Row r sees `before` + r + 1 positions.
// out, q: [rows, heads · size]; keys, values: [positions, heads · size]; scores: room for as many floats as positions, and 4.
EXPORT(attend) void attend(float *out, const float *q, const float *keys, const float *values, float *scores, int rows, int before, int heads, int size) {
  const int width = heads * size;
  const float scale = 1.0f / __builtin_sqrtf((float)size);
  for (int r = 0; r < rows; r++, q += width, out += width) {
    const int seen = before + r + 1;
    for (int h = 0; h < width; h += size) {
      for (int j = 0; j < seen; j++) scores[j] = scale * dot(q + h, keys + j * width + h, size);
      softmax(scores, seen);
      for (int i = 0; i < size; i += 32) {
        v128_t sums[8] = {};
        for (int j = 0; j < seen; j++) {
          const float *value = values + j * width + h + i;
          const v128_t weight = wasm_f32x4_splat(scores[j]);
#pragma unroll
          for (int s = 0; s < 8; s++) sums[s] = add_product(sums[s], weight, wasm_v128_load(value + 4 * s));
        }
#pragma unroll
        for (int s = 0; s < 8; s++) wasm_v128_store(out + h + i + 4 * s, sums[s]);
      }
    }
  }
}
