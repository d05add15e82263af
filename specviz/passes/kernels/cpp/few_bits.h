// Linear layers over few tokens with weights in codes of 8 or 4 bits.
//
// Inputs are whole numbers as well, each group of them times a step of its own: of 8 bits beside weights that were rounded
// here, of as many as float32 has beside weights on a grid. So products are sums of whole numbers: exact in any order, and
// no code has to be converted before it is multiplied. A row's result does not depend on others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gates.h"
#include "lanes.h"

namespace {

// Inputs that share a step, and the words of four that they make; in 4 bits, weights that share a scale.
constexpr int64_t GROUPED = 32, GROUP_WORDS = GROUPED / 4;

// How many words ahead memory is asked for codes, and for scales, which are a quarter as many.
constexpr int64_t CODES_AHEAD = 512, SCALES_AHEAD = CODES_AHEAD / 4;

// How many panels one row is multiplied with at a time. Several streams are read faster from memory than one, but not
// where scales are a stream of their own, nor by a Zen, which with short registers is asked for what follows later, too.
#if defined(ZEN)
constexpr int64_t STREAMS = 1, FAR_AHEAD = LANES < 16 ? 16 * CODES_AHEAD : 0;
#else
constexpr int64_t STREAMS = GROUP, FAR_AHEAD = 0;
#endif

template <int ROWS>
inline void ask_for_codes(const int32_t* words) {
  __builtin_prefetch(words + CODES_AHEAD);
  if constexpr (ROWS == 1 && FAR_AHEAD > 0) __builtin_prefetch(words + FAR_AHEAD, 0, 2);
}

// The same for weights on a grid, or their scales.
template <class Part>
inline void ask_for_grid(const Part* part, int64_t ahead) {
  if constexpr (ONE_STREAM) return __builtin_prefetch(part + 4 * ahead, 0, 2);
  __builtin_prefetch(part + ahead);
  __builtin_prefetch(part + 16 * ahead, 0, 2);
}

// Rows of inputs in whole numbers of DIGITS bytes with a sign, four inputs in a word; an input is a number times the step of
// its group. With three digits numbers go to 2^22, where their steps are no coarser than those of float32.
template <int DIGITS>
struct RoundedRows {
  static constexpr int32_t MOST = DIGITS == 1 ? 127 : 1 << 22;

  int64_t groups;
  std::vector<int32_t> words;  // [rows][groups][DIGITS][GROUP_WORDS], the digit that counts least first
  std::vector<int32_t> sums;   // [rows][groups], of the numbers
  std::vector<float> steps;    // [rows][groups]

  void read(const float* x, int64_t rows, int64_t inputs) {
    groups = (inputs + GROUPED - 1) / GROUPED;
    words.resize(rows * groups * DIGITS * GROUP_WORDS);
    sums.resize(rows * groups);
    steps.resize(rows * groups);
    const int64_t whole = inputs / GROUPED;
    for (int64_t row = 0; row < rows; row++) {
      const float* from = x + row * inputs;
      for (int64_t g = 0; g < whole; g++) round(from + g * GROUPED, row * groups + g);
      if (whole == groups) continue;
      float last[GROUPED] = {};
      std::copy(from + whole * GROUPED, from + inputs, last);
      round(last, row * groups + whole);
    }
  }

 private:
  // In plain loops over whole numbers: what adds or compares floats one after the other is not made into vectors.
  void round(const float* group, int64_t at) {
    constexpr float SHIFT = 12582912.f;  // 1.5 · 2^23: added to a number, it leaves the nearest whole one in the last bits
    int32_t bits[GROUPED], shift, most = 0;
    uint32_t sum = 0;  // of what is no number, it may overflow
    std::memcpy(bits, group, sizeof bits);
    for (int64_t k = 0; k < GROUPED; k++) most = std::max(most, bits[k] & 0x7fffffff);  // sizes of floats, in their order
    float largest;
    std::memcpy(&largest, &most, sizeof largest);
    const float step = largest / MOST, inverse = step > 1e-30f ? 1 / step : 0;
    float shifted[GROUPED];
    for (int64_t k = 0; k < GROUPED; k++) shifted[k] = group[k] * inverse + SHIFT;
    std::memcpy(bits, shifted, sizeof bits);
    std::memcpy(&shift, &SHIFT, sizeof shift);
    for (int64_t k = 0; k < GROUPED; k++) bits[k] -= shift;
    for (int64_t k = 0; k < GROUPED; k++) sum += bits[k];
    int8_t digits[DIGITS][GROUPED];
    for (auto& digit : digits)
      for (int64_t k = 0; k < GROUPED; k++) {
        digit[k] = static_cast<int8_t>(bits[k]);
        bits[k] = (bits[k] - digit[k]) >> 8;
      }
    std::memcpy(words.data() + at * DIGITS * GROUP_WORDS, digits, sizeof digits);
    sums[at] = sum;
    steps[at] = step;
  }
};

// A word holds the codes of four inputs in 8 bits, or of eight in 4 bits: of the first four in the lower half of each
// byte, of the others in the upper.
template <int BITS>
struct Codes {
  using Input = int8_t;
  using Rows = RoundedRows<1>;

  // The most rows that are multiplied at a time: drafters read a token or a few, and to build more takes its time. And the
  // panels that a single row is multiplied with.
  static constexpr int MOST_ROWS = 3, PANELS = BITS == 8 ? STREAMS : 1;

  const int32_t* weights;  // [panels][groups][BITS][PANEL], last panel and last group filled up
  // In 8 bits, of (code − 128): [panels][PANEL] float32. In 4 bits a weight is code · scale + offset: [panels][groups][PANEL]
  // of both in bfloat16, the scale in the upper half.
  const void* scales;
  const float* bias;  // [outputs], or none
  int64_t inputs, outputs;

  const void* panel(int64_t number) const { return weights + number * ((inputs + GROUPED - 1) / GROUPED) * BITS * PANEL; }
};

// Codes of 4 bits on a grid, for inputs as exact as float32: a weight is code · scale + offset. For processors that multiply
// bytes by one instruction: others do better in floats from three rows on. Scale: float, or Half.
template <class Scale>
struct GridCodes {
  using Input = int32_t;
  using Rows = RoundedRows<3>;

  static constexpr int MOST_ROWS = 6, PANELS = 1;

  const int32_t* weights;  // [panels][groups][4][PANEL], as those of `GridHalves`
  const Scale* scales;     // [panels][groups][2][PANEL]
  const float* bias;       // [outputs], or none
  int64_t inputs, outputs;

  const void* panel(int64_t number) const { return weights + number * ((inputs + GROUPED - 1) / GROUPED) * 4 * PANEL; }
};

// Sums of ROWS rows from `row` on and PANELS panels from `panel` on, to `sums` [ROWS][PANELS][PANEL].
template <int ROWS, int PANELS, int BITS>
void multiply_codes(const Codes<BITS>& layer, const RoundedRows<1>& rows, int64_t row, int64_t panel, float* sums) {
  constexpr int WIDE = 2 * PANELS;
  const int64_t groups = rows.groups;
  const Ints low = Ints{} + 0x0f0f0f0f;
  Floats sum[ROWS][WIDE] = {};
  for (int64_t g = 0; g < groups; g++) {
    const int64_t at = row * groups + g;  // of the first row's group
    Ints part[ROWS][WIDE] = {};
#pragma GCC unroll 16
    for (int w = 0; w < BITS; w++)
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        const int32_t* from = layer.weights + (((panel + i / 2) * groups + g) * BITS + w) * PANEL + i % 2 * LANES;
        if (i * LANES % LINE == 0) ask_for_codes<ROWS>(from);
        const Ints word = load_words(from);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const int32_t* x = rows.words.data() + (at + r * groups) * GROUP_WORDS;
          if constexpr (BITS == 4) {
            part[r][i] = add_codes(part[r][i], word & low, x[2 * w]);
            part[r][i] = add_codes(part[r][i], word >> 4 & low, x[2 * w + 1]);
          } else {
            part[r][i] = add_bytes(part[r][i], word, x[w]);
          }
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) {
      Ints scale = {};
      if constexpr (BITS == 4) {
        const int64_t place = ((panel + i / 2) * groups + g) * PANEL + i % 2 * LANES;
        const int32_t* from = static_cast<const int32_t*>(layer.scales) + place;
        if (i * LANES % LINE == 0) __builtin_prefetch(from + SCALES_AHEAD);
        scale = load_words(from);
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const int32_t total = rows.sums[at + r * groups];
        const float step = rows.steps[at + r * groups];
        if constexpr (BITS == 8) {
          const int32_t raised = static_cast<int32_t>(RAISED * static_cast<uint32_t>(total));
          const Floats whole = __builtin_convertvector(part[r][i] - raised, Floats);
          sum[r][i] = add_product(sum[r][i], whole, broadcast(step));
        } else {
          const Floats scaled = __builtin_convertvector(whole_sums(part[r][i]), Floats) * step;
          sum[r][i] = add_product(sum[r][i], scaled, upper_half(scale));
          sum[r][i] = add_product(sum[r][i], broadcast(total * step), lower_half(scale));
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) {
      if constexpr (BITS == 8) sum[r][i] *= load(static_cast<const float*>(layer.scales) + panel * PANEL + i * LANES);
      store(sums + (r * WIDE + i) * LANES, sum[r][i]);
    }
}

// The same of codes on a grid. Each digit of the inputs has its own sum of whole numbers; 32 products of a code and a number
// up to 2^22 do not reach 2^31.
template <int ROWS, int PANELS, class Scale>
void multiply_codes(const GridCodes<Scale>& layer, const RoundedRows<3>& rows, int64_t row, int64_t panel, float* sums) {
  constexpr int WIDE = 2 * PANELS;
  const int64_t groups = rows.groups;
  const Ints low = Ints{} + 0x0f0f0f0f;
  std::fill_n(sums, ROWS * PANELS * PANEL, 0.f);
  for (int64_t g = 0; g < groups; g++) {
    const int64_t at = row * groups + g;  // of the first row's group
    Ints codes[GROUP_WORDS][WIDE];
#pragma GCC unroll 16
    for (int w = 0; w < GROUP_WORDS; w += 2)
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        const int64_t place = ((panel + i / 2) * groups + g) * 4 + w / 2;
        const int32_t* from = layer.weights + place * PANEL + i % 2 * LANES;
        if (i * LANES % LINE == 0) ask_for_grid(from, CODES_AHEAD);
        const Ints word = load_words(from);
        codes[w][i] = word & low;
        codes[w + 1][i] = word >> 4 & low;
      }
    Ints whole[ROWS][WIDE] = {};
#pragma GCC unroll 3
    for (int digit = 2; digit >= 0; digit--) {
      Ints part[ROWS][WIDE] = {};
#pragma GCC unroll 16
      for (int w = 0; w < GROUP_WORDS; w++)
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const int32_t x = rows.words[((at + r * groups) * 3 + digit) * GROUP_WORDS + w];
#pragma GCC unroll 16
          for (int i = 0; i < WIDE; i++) part[r][i] = add_codes(part[r][i], codes[w][i], x);
        }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
        for (int i = 0; i < WIDE; i++) whole[r][i] = (whole[r][i] << 8) + whole_sums(part[r][i]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) {
      const Scale* scales = layer.scales + ((panel + i / 2) * groups + g) * 2 * PANEL + i % 2 * LANES;
      if (i * sizeof(Scale) * LANES % (4 * LINE) == 0) {
        ask_for_grid(scales, CODES_AHEAD / 2);
        ask_for_grid(scales + PANEL, CODES_AHEAD / 2);
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const float step = rows.steps[at + r * groups], total = rows.sums[at + r * groups] * step;
        float* sum = sums + (r * WIDE + i) * LANES;
        const Floats more = add_product(load(sum), __builtin_convertvector(whole[r][i], Floats) * step, load(scales));
        store(sum, add_product(more, broadcast(total), load(scales + PANEL)));
      }
    }
  }
}

// Writes outputs of ROWS rows from `row` on, to `out` [rows][outputs]: those of the panels from `panel` to `end`.
template <int ROWS, int PANELS, class Kind>
void write_coded(
    const Kind& layer, const typename Kind::Rows& rows, int64_t row, float* out, int64_t panel, int64_t end) {
  alignas(64) float sums[ROWS][PANELS * PANEL];
  for (; panel + PANELS <= end; panel += PANELS) {
    multiply_codes<ROWS, PANELS>(layer, rows, row, panel, sums[0]);
    write_sums(layer, sums, panel * PANEL, out + row * layer.outputs);
  }
  if constexpr (PANELS > 1) write_coded<ROWS, 1>(layer, rows, row, out, panel, end);
}

// The same for `count` rows, at most ROWS.
template <int ROWS, class Kind>
void write_coded(
    const Kind& layer, int64_t count, const typename Kind::Rows& rows, int64_t row, float* out, int64_t panel, int64_t end) {
  if constexpr (ROWS > 1)
    if (count < ROWS) return write_coded<ROWS - 1>(layer, count, rows, row, out, panel, end);
  write_coded<ROWS, ROWS == 1 ? Kind::PANELS : 1>(layer, rows, row, out, panel, end);
}

// Writes a layer's panels from `panel` to `last`.
template <class Kind>
[[gnu::noinline]] void write_share(
    const Kind& layer, const typename Kind::Rows& rounded, float* out, int64_t rows, int64_t panel, int64_t last) {
  const int64_t times = (rows + Kind::MOST_ROWS - 1) / Kind::MOST_ROWS, some = (rows + times - 1) / times;
  for (; panel < last; panel += GROUP)
    for (int64_t row = 0; row < rows; row += some) {
      const int64_t count = std::min(some, rows - row), end = std::min(panel + GROUP, last);
      write_coded<Kind::MOST_ROWS>(layer, count, rounded, row, out, panel, end);
    }
}

// Layers of the same inputs. x: [rows][inputs]. outs: of each layer [rows][outputs].
template <class Kind, class Rows = typename Kind::Rows>
void linear_in_whole_numbers(
    const Kind* layers, int count, const float* x, float* const* outs, int64_t rows, const Gate* gate) {
  static thread_local Rows kept;
  kept.read(x, rows, layers[0].inputs);
  const Rows& rounded = kept;
  share_outputs(layers, count, gate, [&](int i, int64_t panel, int64_t last) {
    write_share(layers[i], rounded, outs[i], rows, panel, last);
  });
}

}  // namespace
