// Linear layers and attention (attention.h) over few tokens on a CPU: weights in float32 or bfloat16, on grids (grids.h), or
// in few bits (few_bits.h); inputs in float32, or rounded to bfloat16 where that is multiplied faster; everything else in
// float32.
//
// Reading weights from memory is what takes the time, so a pass over several tokens should cost what one over a single
// token does. Each panel of weights is read once for many rows, and every row is summed in an order that does not
// depend on the others: a token's result is the same, bit by bit, whatever else is in its pass, on however many threads
// (crew.h).
//
// The C functions at the end are what Python calls, and shims.cpp for compiled programs.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "attention.h"
#include "crew.h"
#include "few_bits.h"
#include "gates.h"
#include "given.h"
#include "grids.h"
#include "lanes.h"

namespace {

// How many layers are computed together at most.
constexpr int MOST_BESIDE = 3;

// How many rows are multiplied with several panels at a time.
constexpr int MOST_STREAMED = 3;

// Asks memory for weights that follow. AMD's earlier Zens look ahead themselves while few rows leave them time; with more they
// do better asked for those of the next panels, into the second cache.
template <int ROWS, int WORD>
inline void ask_ahead(const int32_t* words) {
  if constexpr (ONE_STREAM && WORD == 2) return __builtin_prefetch(words + 4 * AHEAD / WORD, 0, 2);
#if defined(ZEN)
  if constexpr (ROWS <= MOST_ROWS / 4)
    __builtin_prefetch(words + 128 / WORD);
  else
    __builtin_prefetch(words + 16 * AHEAD / WORD, 0, 2);
#else
  __builtin_prefetch(words + AHEAD / WORD);
  // More rows read a panel at a time, one stream, which memory sends more slowly than several: what follows much later
  // is asked for too, into the second cache.
  if constexpr (ROWS > MOST_STREAMED) __builtin_prefetch(words + 16 * AHEAD / WORD, 0, 2);
#endif
}

// The weight at a place of each word, which holds WORD of them: one float32, or two bfloat16s.
// upper: the mask of words' upper halves.
template <int WORD>
inline Floats unpack(Ints words, int place, Ints upper) {
  if constexpr (WORD == 1) return reinterpret_cast<Floats>(words);
  return reinterpret_cast<Floats>(place == 0 ? words << 16 : words & upper);
}

// ------------------------------------------------------------------------------------------------------ linear layers

// WORD: weights in a word. As: what the inputs are multiplied as, float or Pair.
template <int WORD, class As>
struct Layer {
  using Input = As;

  const int32_t* weights;  // [panels][inputs / WORD][PANEL], last panel and last word filled up
  const float* scales;     // of other kinds
  const float* bias;       // [outputs], or none
  int64_t inputs, outputs;

  // Each sum waits for the one before it, and memory gives more to several streams than to one.
  static constexpr int panels_at_once(int rows) {
    return ONE_STREAM && WORD == 2 ? 1 : rows <= MOST_ROWS / 4 ? GROUP : rows <= MOST_STREAMED ? 2 : 1;
  }

  int64_t filled_up() const { return (inputs + WORD - 1) / WORD * WORD; }
  int64_t stride() const { return filled_up() / WORD * PANEL; }                                  // words of a panel
  const void* panel(int64_t number) const { return weights + number * stride(); }                // where it begins
  int64_t wide() const { return std::is_same_v<Input, Pair> ? filled_up() / 2 : filled_up(); }  // Inputs of a row
};

// Other kinds have more to do.
template <int WORD, class Input>
void make_ready(const Layer<WORD, Input>&, Input*, int64_t) {}

// rows [inputs][ROWS], or pairs of inputs, times PANELS panels from `panel` on. sums: [ROWS][PANELS][PANEL].
template <int ROWS, int PANELS, int WORD, class Input>
void multiply(const Layer<WORD, Input>& layer, const Input* rows, int64_t panel, float* sums) {
  const int64_t inputs = layer.filled_up(), stride = layer.stride();
  const int32_t* panels = layer.weights + panel * stride;
  Floats sum[ROWS][2 * PANELS] = {};
  Ints upper = Ints{} + static_cast<int32_t>(0xffff0000);
  for (int64_t k = 0; k < inputs; k += WORD) {
    const int32_t* from[2 * PANELS];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * PANELS; i++) {
      from[i] = panels + i / 2 * stride + k / WORD * PANEL + i % 2 * LANES;
      ask_ahead<ROWS, WORD>(from[i]);
    }
    if constexpr (std::is_same_v<Input, Pair>) {
      Ints words[2 * PANELS];
#pragma GCC unroll 16
      for (int i = 0; i < 2 * PANELS; i++) words[i] = load_words(from[i]);
#pragma GCC unroll 16  // or else the sums live in memory, and five rows take twice the time of one
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
        for (int i = 0; i < 2 * PANELS; i++) sum[r][i] = add_products(sum[r][i], words[i], rows[k / WORD * ROWS + r]);
    } else {
#pragma GCC unroll 16
      for (int place = 0; place < WORD; place++) {
        // Where sums, words, weights, an input and the mask take all registers, words and mask are read again rather than
        // kept: or else sums live in memory, and six rows take a quarter longer.
        if constexpr (2 * PANELS * (ROWS + 2) + 2 >= REGISTERS) asm volatile("" : "+m"(upper) : : "memory");
        if constexpr (ROWS > 1 && 2 * PANELS * (ROWS + 1) == REGISTERS) {
          // Not all weights beside the sums, but all inputs.
          Floats x[ROWS];
#pragma GCC unroll 16
          for (int r = 0; r < ROWS; r++) x[r] = broadcast(rows[(k + place) * ROWS + r]);
#pragma GCC unroll 16
          for (int i = 0; i < 2 * PANELS; i++) {
            const Floats weight = unpack<WORD>(load_words(from[i]), place, upper);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) sum[r][i] = add_product(sum[r][i], weight, x[r]);
          }
          continue;
        }
        Floats weight[2 * PANELS];
#pragma GCC unroll 16
        for (int i = 0; i < 2 * PANELS; i++) weight[i] = unpack<WORD>(load_words(from[i]), place, upper);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
          for (int i = 0; i < 2 * PANELS; i++)
            sum[r][i] = add_product(sum[r][i], weight[i], broadcast(rows[(k + place) * ROWS + r]));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int i = 0; i < 2 * PANELS; i++) store(sums + (r * 2 * PANELS + i) * LANES, sum[r][i]);
}

// Writes outputs of ROWS rows, to `out` [ROWS][outputs]: those of PANELS panels from `panel` on.
template <int ROWS, int PANELS, class Kind, class Input>
void write_panels(const Kind& layer, const Input* rows, float* out, int64_t panel) {
  alignas(64) float sums[ROWS][PANELS * PANEL];
  multiply<ROWS, PANELS>(layer, rows, panel, sums[0]);
  write_sums(layer, sums, panel * PANEL, out);
}

// The same for the panels from `panel` to `end`.
template <int ROWS, class Kind, class Input>
void write_group(const Kind& layer, const Input* rows, float* out, int64_t panel, int64_t end) {
  constexpr int some = Kind::panels_at_once(ROWS);
  for (; panel + some <= end; panel += some) write_panels<ROWS, some>(layer, rows, out, panel);
  for (; panel < end; panel++) write_panels<ROWS, 1>(layer, rows, out, panel);
}

// The same for `count` rows, at most ROWS.
template <int ROWS, class Kind, class Input>
void write_rows(const Kind& layer, int64_t count, const Input* rows, float* out, int64_t panel, int64_t end) {
  if constexpr (ROWS > 1)
    if (count < ROWS) return write_rows<ROWS - 1>(layer, count, rows, out, panel, end);
  write_group<ROWS>(layer, rows, out, panel, end);
}

// Puts rows [ROWS][inputs] side by side, [inputs][ROWS]: a row's length apart they would compete for the same places of
// the cache.
template <int ROWS, class Input>
void side_by_side(const Input* x, int64_t count, int64_t inputs, Input* to) {
  if constexpr (ROWS > 1)
    if (count < ROWS) return side_by_side<ROWS - 1>(x, count, inputs, to);
  for (int64_t k = 0; k < inputs; k++)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) to[k * ROWS + r] = x[r * inputs + k];
}

// x: [rows][inputs]. The same, or rounded to pairs, [rows][wide]; what is missing of a pair is 0.
template <class Kind, class Input = typename Kind::Input>
const Input* given(const Kind& layer, const float* x, int64_t rows) {
  if constexpr (std::is_same_v<Input, float>) {
    return x;
  } else {
    static thread_local std::vector<Input> kept;
    kept.resize(rows * layer.wide() + LANES);  // what is written past the end of a row, the next one replaces
    for (int64_t row = 0; row < rows; row++) {
      const float* from = x + row * layer.inputs;
      Input* to = kept.data() + row * layer.wide();
      int64_t k = 0;
      for (; k + LANES <= layer.inputs; k += LANES) store_rounded(to + k / 2, load(from + k));
      if (k < layer.inputs) store_rounded(to + k / 2, load_some(from + k, layer.inputs - k));
    }
    return kept.data();
  }
}

// How many rows are multiplied at a time: as few times as can be, and each time about as many.
inline int64_t at_once(int64_t rows) {
  const int64_t times = (rows + MOST_ROWS - 1) / MOST_ROWS;
  return (rows + times - 1) / times;
}

// Writes a layer's panels from `panel` to `last`; `beside`: inputs in blocks side by side. Not inlined: in the midst of other loops
// sums are kept in memory, and five rows take a third longer.
template <class Kind, class Input = typename Kind::Input>
[[gnu::noinline]] void write_share(
    const Kind& layer, const Input* beside, float* out, int64_t rows, int64_t panel, int64_t last) {
  for (; panel < last; panel += GROUP)
    for (int64_t row = 0; row < rows; row += at_once(rows)) {
      const int64_t count = std::min(at_once(rows), rows - row), end = std::min(panel + GROUP, last);
      write_rows<MOST_ROWS>(layer, count, beside + row * layer.wide(), out + row * layer.outputs, panel, end);
    }
}

// Layers of the same kind and inputs. x: [rows][inputs]. outs: of each layer [rows][outputs].
template <class Kind, class Input = typename Kind::Input>
void linear(const Kind* layers, int count, const float* x, float* const* outs, int64_t rows, const Gate* gate) {
  static thread_local std::vector<Input> kept;
  const Kind& first = layers[0];
  const int64_t wide = first.wide();
  kept.resize(rows * wide);
  Input* beside = kept.data();
  const Input* apart = given(first, x, rows);
  const int64_t length = std::is_same_v<Input, Pair> ? wide : first.inputs;
  for (int64_t row = 0; row < rows; row += at_once(rows)) {
    const int64_t some = std::min(at_once(rows), rows - row);
    Input* block = beside + row * wide;
    side_by_side<MOST_ROWS>(apart + row * length, some, length, block);
    std::fill(block + some * length, block + some * wide, Input());
    make_ready(first, block, some);
  }
  share_outputs(layers, count, gate, [&](int i, int64_t panel, int64_t last) {
    write_share(layers[i], beside, outs[i], rows, panel, last);
  });
}

// Layers over the same inputs, at most MOST_BESIDE. Those of one dtype are computed together. gate: the first one's, if that is
// the second one's; where their dtypes differ, one thread applies it in the end.
void compute(
    const Given* given, int32_t count, const float* x, int64_t rows, int64_t inputs, const Gate* gate = nullptr) {
  if (!rows) return;
  int32_t next = 1;
  while (next < count && given[next].dtype == given->dtype) next++;
  if (gate && next < count) {
    compute(given, count, x, rows, inputs);
    return gate->apply(0, gate->outputs);
  }
  const auto run = [&](auto kind) {
    using Kind = decltype(kind);
    Kind layers[MOST_BESIDE];
    float* outs[MOST_BESIDE];
    for (int i = 0; i < next; i++) {
      const Given& one = given[i];
      const auto weights = static_cast<decltype(kind.weights)>(one.weights);
      layers[i] = {weights, static_cast<decltype(kind.scales)>(one.scales), one.bias, inputs, one.outputs};
      outs[i] = one.out;
    }
    if constexpr (std::is_integral_v<typename Kind::Input>)
      linear_in_whole_numbers(layers, next, x, outs, rows, gate);
    else
      linear(layers, next, x, outs, rows, gate);
  };
  const int32_t dtype = given->dtype;
  if (dtype == aoti_torch_dtype_float32()) run(Layer<1, float>());
  if (dtype == aoti_torch_dtype_bfloat16()) run(Layer<2, std::conditional_t<MULTIPLIES_PAIRS, Pair, float>>());
  if (dtype == aoti_torch_dtype_int16()) run(Layer<2, float>());
  if (dtype == aoti_torch_dtype_int8()) run(GridBytes<int8_t, 32, float>());
  if (dtype == aoti_torch_dtype_float16()) run(GridBytes<int8_t, 32, Half>());
  if (dtype == aoti_torch_dtype_uint16()) run(GridBytes<int8_t, 16, float>());
  if (dtype == aoti_torch_dtype_uint32()) run(GridBytes<uint8_t, 16, float>());
  if (dtype == aoti_torch_dtype_int64()) run(std::conditional_t<MULTIPLIES_BYTES, GridCodes<float>, GridHalves<float>>());
  if (dtype == aoti_torch_dtype_uint64()) run(std::conditional_t<MULTIPLIES_BYTES, GridCodes<Half>, GridHalves<Half>>());
  if (dtype == aoti_torch_dtype_uint8()) run(Codes<8>());
  if (dtype == aoti_torch_dtype_int32()) run(Codes<4>());
  if (next < count) compute(given + next, count - next, x, rows, inputs);
}

}  // namespace

extern "C" {

int64_t few_rows_panel() { return PANEL; }

void few_rows_use(int32_t threads) { crew().use(threads); }

double few_rows_help() { return crew().help_since(); }

bool few_rows_multiplies_bfloat16() { return MULTIPLIES_PAIRS; }

void few_rows_linear(const Given* given, int32_t count, const float* x, int64_t rows, int64_t inputs) {
  compute(given, count, x, rows, inputs);
}

void few_rows_gated(const Given* given, bool tanh, const float* x, int64_t rows, int64_t inputs) {
  const std::unique_ptr<float[]> up(new float[rows * given->outputs]);
  Given both[] = {given[0], given[1]};
  both[1].out = up.get();
  const Gate gate = {both[0].out, both[1].out, rows, given->outputs, tanh};
  compute(both, 2, x, rows, inputs, &gate);
}

void few_rows_attention(
    const float* queries, const float* keys, const float* values, const float* mask, float* out, int64_t heads,
    int64_t shared, int64_t tokens, int64_t room, int64_t size, int64_t head_stride, int64_t token_stride, float scale) {
  attend(
      {queries, keys, values, mask, out, heads, shared, tokens, room, size, head_stride, token_stride, scale});
}

// Keys or values of several layers, [heads][room][size] each: moves what lies at the places `origins` [count], which ascend
// from `start` on or later, to those from `start` on.
void few_rows_move(
    int64_t tensors, float* const* rows, const int64_t* heads, const int64_t* sizes, int64_t room, int64_t start, int64_t count,
    const int64_t* origins) {
  for (int64_t i = 0; i < tensors; i++)
    for (int64_t head = 0; head < heads[i]; head++) {
      const int64_t size = sizes[i];
      float* places = rows[i] + head * room * size;
      for (int64_t k = 0; k < count; k++)
        if (origins[k] != start + k) std::copy_n(places + origins[k] * size, size, places + (start + k) * size);
    }
}
}
