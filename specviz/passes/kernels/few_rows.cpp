// Linear layers and attention over few tokens on a CPU: weights in float32 or bfloat16, on grids, or in few bits
// (few_bits.h); inputs in float32, or rounded to bfloat16 where that is multiplied faster; everything else in float32.
//
// Reading weights from memory is what takes the time, so a pass over several tokens should cost what one over a single
// token does. Each panel of weights is read once for many rows, and every row is summed in an order that does not
// depend on the others: a token's result is the same, bit by bit, whatever else is in its pass, on however many threads
// (crew.h).
//
// The C functions at the end are what Python and compiled programs call.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "crew.h"
#include "few_bits.h"
#include "lanes.h"

namespace {

// How many registers there are at least, and how many rows' sums they hold beside all else, at two registers a row.
constexpr int REGISTERS = LANES == 16 ? 32 : 16, MOST_ROWS = REGISTERS * 3 / 8;

// How many layers are computed together at most.
constexpr int MOST_BESIDE = 3;

// How many rows are multiplied with several panels at a time.
constexpr int MOST_STREAMED = 3;

// How many floats ahead memory is asked, so that it has answered when they are needed.
constexpr int64_t AHEAD = 1024;

// Asks memory for weights that follow. AMD's Zen looks ahead itself while few rows leave it time; with more it does better
// asked for those of the next panels, into its second cache.
template <int ROWS, int WORD>
inline void ask_ahead(const int32_t* words) {
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

// WORD: weights in a word. Input: what the inputs are multiplied as, float or Pair.
template <int WORD, class Input>
struct Layer {
  const int32_t* words;  // [panels][inputs / WORD][PANEL], last panel and last word, or group, filled up
  const float* scales;   // of weights on a grid, [panels][groups][2][PANEL]: each is code · scale + offset
  const float* bias;     // [outputs], or none
  int64_t inputs, outputs;

  static constexpr int GRID = WORD < 4 ? WORD : 4 * WORD;  // inputs whose weights share a grid

  int64_t groups() const { return (inputs + GRID - 1) / GRID; }
  int64_t filled_up() const { return groups() * GRID; }
  int64_t stride() const { return filled_up() / WORD * PANEL; }  // words of a panel
  int64_t wide() const {                                         // Inputs of a row
    return std::is_same_v<Input, Pair> ? filled_up() / 2 : filled_up() + (WORD < 4 ? 0 : groups());
  }
};

// rows [inputs][ROWS], or pairs of inputs, times PANELS panels from `panel` on. sums: [ROWS][PANELS][PANEL].
template <int ROWS, int PANELS, int WORD, class Input>
void multiply(const Layer<WORD, Input>& layer, const Input* rows, int64_t panel, float* sums) {
  const int64_t inputs = layer.filled_up(), stride = layer.stride();
  const int32_t* panels = layer.words + panel * stride;
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

// Which input of a word the code at a place belongs to: Codes (few_bits.h) lie in words alike.
template <int WORD>
constexpr int input_at(int place) {
  return WORD == 8 ? place % 2 * 4 + place / 2 : place;
}

// Makes rows ready for weights on grids. Codes are converted where they lie in their words, which makes them larger by a
// power of 2 that is taken off the inputs here; the last of a word, where a sign would be, is moved down. Offsets are
// multiplied with the sums of groups of inputs, which follow the rows. rows: [inputs][count], then [groups][count].
template <int WORD>
void divide_places(const Layer<WORD, float>& layer, float* rows, int64_t count) {
  constexpr int BITS = 32 / WORD;
  float* total = rows + layer.filled_up() * count;
  for (int64_t g = 0; g < layer.groups(); g++, total += count) {
    std::fill_n(total, count, 0.f);
    for (int w = 0; w < layer.GRID / WORD; w++, rows += WORD * count)
#pragma GCC unroll 8
      for (int place = 0; place < WORD; place++) {
        const float share = place + 1 < WORD ? 1.f / (1 << place * BITS) : 1;
        float* row = rows + input_at<WORD>(place) * count;
        for (int64_t r = 0; r < count; r++) {
          total[r] += row[r];
          row[r] *= share;
        }
      }
  }
}

// The same of weights on grids, with rows from `divide_places`.
template <int ROWS, int PANELS, int WORD>
void multiply_grids(const Layer<WORD, float>& layer, const float* rows, int64_t panel, float* sums) {
  constexpr int GRID = Layer<WORD, float>::GRID, BITS = 32 / WORD, WIDE = 2 * PANELS;
  const int64_t groups = layer.groups(), stride = layer.stride();
  const float* totals = rows + layer.filled_up() * ROWS;
  Ints masks[WORD - 1];
  for (int place = 0; place + 1 < WORD; place++) masks[place] = Ints{} + (((1 << BITS) - 1) << place * BITS);
  std::fill_n(sums, ROWS * PANELS * PANEL, 0.f);
  for (int64_t g = 0; g < groups; g++) {
    Floats part[ROWS][WIDE] = {};
#pragma GCC unroll 1
    for (int w = 0; w < GRID / WORD; w++) {
      Ints words[WIDE];
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        const int32_t* from = layer.words + (panel + i / 2) * stride + (g * (GRID / WORD) + w) * PANEL + i % 2 * LANES;
        if (i * LANES % LINE == 0) {
          __builtin_prefetch(from + AHEAD / 2);
          __builtin_prefetch(from + 8 * AHEAD, 0, 2);
        }
        words[i] = load_words(from);
      }
#pragma GCC unroll 16
      for (int place = 0; place < WORD; place++) {
        const bool last = place + 1 == WORD;
        Ints& mask = masks[last ? 0 : place];
        // Masks and inputs are read where they are needed: or else sums live in memory, for want of registers.
        asm volatile("" : "+m"(mask) : : "memory");
        Floats weight[WIDE];
#pragma GCC unroll 16
        for (int i = 0; i < WIDE; i++) {
          const Ints code = (last ? words[i] >> place * BITS : words[i]) & mask;
          weight[i] = __builtin_convertvector(code, Floats);
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
          for (int i = 0; i < WIDE; i++)
            part[r][i] = add_product(part[r][i], weight[i], broadcast(rows[(w * WORD + input_at<WORD>(place)) * ROWS + r]));
      }
    }
    rows += GRID * ROWS;
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) {
      const float* scales = layer.scales + ((panel + i / 2) * groups + g) * 2 * PANEL + i % 2 * LANES;
      if (i * LANES % LINE == 0) {
        __builtin_prefetch(scales + AHEAD / 4);
        __builtin_prefetch(scales + PANEL + AHEAD / 4);
        __builtin_prefetch(scales + 4 * AHEAD, 0, 2);
        __builtin_prefetch(scales + PANEL + 4 * AHEAD, 0, 2);
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        float* sum = sums + (r * WIDE + i) * LANES;
        const Floats more = add_product(load(sum), part[r][i], load(scales));
        store(sum, add_product(more, broadcast(totals[g * ROWS + r]), load(scales + PANEL)));
      }
    }
  }
}

// Writes outputs of ROWS rows, to `out` [ROWS][outputs]: those of PANELS panels from `panel` on.
template <int ROWS, int PANELS, int WORD, class Input>
void write_panels(const Layer<WORD, Input>& layer, const Input* rows, float* out, int64_t panel) {
  alignas(64) float sums[ROWS][PANELS * PANEL];
  if constexpr (WORD >= 4)
    multiply_grids<ROWS, PANELS>(layer, rows, panel, sums[0]);
  else
    multiply<ROWS, PANELS>(layer, rows, panel, sums[0]);
  write_sums(layer, sums, panel * PANEL, out);
}

// The same for the panels from `panel` to `end`. Each sum waits for the one before it, and memory gives more to several
// streams than to one: the fewest rows are multiplied with several panels at a time.
template <int ROWS, int WORD, class Input>
void write_group(const Layer<WORD, Input>& layer, const Input* rows, float* out, int64_t panel, int64_t end) {
  constexpr int more = WORD >= 4 ? (ROWS == 1 ? 2 : 1) : ROWS <= MOST_STREAMED ? 2 : 1;
  constexpr int some = WORD < 4 && ROWS <= MOST_ROWS / 4 ? GROUP : more;
  for (; panel + some <= end; panel += some) write_panels<ROWS, some>(layer, rows, out, panel);
  for (; panel < end; panel++) write_panels<ROWS, 1>(layer, rows, out, panel);
}

// The same for `count` rows, at most ROWS.
template <int ROWS, int WORD, class Input>
void write_rows(
    const Layer<WORD, Input>& layer, int64_t count, const Input* rows, float* out, int64_t panel, int64_t end) {
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
template <int WORD, class Input>
const Input* given(const Layer<WORD, Input>& layer, const float* x, int64_t rows) {
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
template <int WORD, class Input>
[[gnu::noinline]] void write_share(
    const Layer<WORD, Input>& layer, const Input* beside, float* out, int64_t rows, int64_t panel, int64_t last) {
  for (; panel < last; panel += GROUP)
    for (int64_t row = 0; row < rows; row += at_once(rows)) {
      const int64_t count = std::min(at_once(rows), rows - row), end = std::min(panel + GROUP, last);
      write_rows<MOST_ROWS>(layer, count, beside + row * layer.wide(), out + row * layer.outputs, panel, end);
    }
}

// Layers of the same kind and inputs. x: [rows][inputs]. outs: of each layer [rows][outputs].
template <int WORD, class Input>
void linear(const Layer<WORD, Input>* layers, int count, const float* x, float* const* outs, int64_t rows) {
  static thread_local std::vector<Input> kept;
  const Layer<WORD, Input>& first = layers[0];
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
    if constexpr (WORD >= 4) divide_places(first, block, some);
  }
  share_panels(layers, count, [&](int i, int64_t panel, int64_t last) {
    write_share(layers[i], beside, outs[i], rows, panel, last);
  });
}

// ---------------------------------------------------------------------------------------------------------- attention

// Lanes of `a` and `b`; indices of b's begin at LANES.
template <int... INDICES>
inline Floats shuffle(Floats a, Floats b, std::integer_sequence<int, INDICES...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, INDICES...);
#else
  return __builtin_shuffle(a, b, Ints{INDICES...});
#endif
}

// Each lane and the one WIDTH away, added: a's where that bit of the lane's number is 0, b's where it is 1.
template <int WIDTH, int... LANE>
inline Floats fold_two(Floats a, Floats b, std::integer_sequence<int, LANE...>) {
  const Floats own = shuffle(a, b, std::integer_sequence<int, (LANE & WIDTH ? LANES + LANE : LANE)...>());
  const Floats other =
      shuffle(a, b, std::integer_sequence<int, (LANE & WIDTH ? LANES + LANE - WIDTH : LANE + WIDTH)...>());
  return own + other;
}

// The sum over all lanes of each of LANES registers, in one register.
template <int WIDTH = LANES / 2>
inline Floats fold(Floats* parts) {
#pragma GCC unroll 8
  for (int i = 0; i < WIDTH; i++)
    parts[i] = fold_two<WIDTH>(parts[i], parts[i + WIDTH], std::make_integer_sequence<int, LANES>());
  if constexpr (WIDTH > 1) return fold<WIDTH / 2>(parts);
  return parts[0];
}

struct Attention {
  const float *queries, *keys, *values;       // keys, values: [shared][room][size]
  const float* mask;                          // [tokens][room], 0 where a token sees a place
  float* out;                                 // [tokens][heads][size]
  int64_t heads, shared, tokens, room, size;  // shared: heads of keys and values
  int64_t head_stride, token_stride;          // of the queries
  float scale;
};

// The places that a token sees, in the order of the text.
struct Seen {
  const int32_t* places;
  int64_t count;
};

// Tokens whose attention is computed together: what all of them see is read once.
constexpr int MOST_TOKENS = 5;

// Fewer products than these are not shared among threads.
constexpr int64_t FEW_PRODUCTS = 1 << 18;

// Products of ROWS queries with the keys at places[first] to places[end], LANES of them at a time, so that their sums
// fold into one register. scores: [ROWS][wide]. BLOCKS: how many whole registers a key has; 0 if not known here.
template <int ROWS, int BLOCKS>
void score(
    const Attention& task, const float* query, const float* keys, const int32_t* places, int64_t first, int64_t end,
    float* scores, int64_t wide) {
  const int64_t blocks = BLOCKS ? BLOCKS : task.size / LANES, left = task.size - blocks * LANES;
  for (; first < end; first += LANES) {
    Floats parts[ROWS][LANES];
    for (int i = 0; i < LANES; i++) {
      const float* key = keys + places[std::min(first + i, end - 1)] * task.size;
      for (int64_t k = 0; k < task.size; k += LINE) __builtin_prefetch(key + AHEAD + k);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const float* own = query + r * task.token_stride;
        Floats sum = {};
#pragma GCC unroll 8
        for (int64_t b = 0; b < blocks; b++) sum = add_product(sum, load(own + b * LANES), load(key + b * LANES));
        if (left) sum = add_product(sum, load_some(own + blocks * LANES, left), load_some(key + blocks * LANES, left));
        parts[r][i] = sum;
      }
    }
    for (int r = 0; r < ROWS; r++) store(scores + r * wide + first, fold(parts[r]) * task.scale);
  }
}

// The exponentials of `count` scores less the largest, in their place, up to the end of a register; returns their sum.
float weigh(float* scores, int64_t count) {
  constexpr float LEAST = -std::numeric_limits<float>::max();
  for (int64_t i = count; i % LANES; i++) scores[i] = LEAST;
  Floats most = Floats{} + LEAST, sum = {};
  for (int64_t i = 0; i < count; i += LANES) most = most > load(scores + i) ? most : load(scores + i);
  float largest = LEAST, total = 0;
  for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, most[lane]);
  for (int64_t i = 0; i < count; i += LANES) {
    const Floats weights = exponential(load(scores + i) - largest);
    store(scores + i, weights);
    sum += weights;
  }
  for (int lane = 0; lane < LANES; lane++) total += sum[lane];
  return total;
}

// Adds the values at places[first] to places[end] to ROWS sums in `out`, by their weights [ROWS][wide]. Of each value,
// the WIDE registers from `values` on.
template <int ROWS, int WIDE>
void gather(
    const Attention& task, const float* values, const int32_t* places, int64_t first, int64_t end, const float* weights,
    int64_t wide, float* out) {
  Floats sum[ROWS][WIDE];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int w = 0; w < WIDE; w++) sum[r][w] = load(out + r * task.heads * task.size + w * LANES);
  for (int64_t i = first; i < end; i++) {
    const float* from = values + places[i] * task.size;
    for (int k = 0; k < WIDE * LANES; k += LINE) __builtin_prefetch(from + AHEAD + k);
#pragma GCC unroll 8
    for (int w = 0; w < WIDE; w++) {
      const Floats value = load(from + w * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) sum[r][w] = add_product(sum[r][w], value, broadcast(weights[r * wide + i]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int w = 0; w < WIDE; w++) store(out + r * task.heads * task.size + w * LANES, sum[r][w]);
}

// The same for whole values.
template <int ROWS>
void gather_all(
    const Attention& task, const float* values, const int32_t* places, int64_t first, int64_t end, const float* weights,
    int64_t wide, float* out) {
  constexpr int WIDE = MOST_ROWS / 3;  // so many that all sums have their registers
  int64_t start = 0;
  for (; start + WIDE * LANES <= task.size; start += WIDE * LANES)
    gather<ROWS, WIDE>(task, values + start, places, first, end, weights, wide, out + start);
  for (; start + LANES <= task.size; start += LANES)
    gather<ROWS, 1>(task, values + start, places, first, end, weights, wide, out + start);
  for (; start < task.size; start++)
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = first; i < end; i++)
        out[r * task.heads * task.size + start] += values[places[i] * task.size + start] * weights[r * wide + i];
}

// One head's attention of ROWS tokens from `token` on, the first `common` places seen by all of them.
template <int ROWS, int BLOCKS>
void attend_rows(
    const Attention& task, int64_t head, int64_t token, const Seen* seen, int64_t common, float* scores) {
  const int64_t wide = task.room + LANES, rows = head / (task.heads / task.shared) * task.room * task.size;
  const float *query = task.queries + head * task.head_stride + token * task.token_stride;
  const float *keys = task.keys + rows, *values = task.values + rows;
  float* out = task.out + (token * task.heads + head) * task.size;
  score<ROWS, BLOCKS>(task, query, keys, seen[token].places, 0, common, scores, wide);
  float total[ROWS];
  for (int r = 0; r < ROWS; r++) {
    const Seen own = seen[token + r];
    score<1, BLOCKS>(
        task, query + r * task.token_stride, keys, own.places, common, own.count, scores + r * wide, wide);
    total[r] = weigh(scores + r * wide, own.count);
    std::fill_n(out + r * task.heads * task.size, task.size, 0.f);
  }
  gather_all<ROWS>(task, values, seen[token].places, 0, common, scores, wide, out);
  for (int r = 0; r < ROWS; r++) {
    const Seen own = seen[token + r];
    float* to = out + r * task.heads * task.size;
    gather_all<1>(task, values, own.places, common, own.count, scores + r * wide, wide, to);
    for (int64_t i = 0; i < task.size && own.count; i++) to[i] /= total[r];
  }
}

// The same for `count` tokens, at most ROWS.
template <int ROWS, int BLOCKS>
void attend_some(
    const Attention& task, int64_t head, int64_t token, int64_t count, const Seen* seen, int64_t common,
    float* scores) {
  if constexpr (ROWS > 1)
    if (count < ROWS) return attend_some<ROWS - 1, BLOCKS>(task, head, token, count, seen, common, scores);
  attend_rows<ROWS, BLOCKS>(task, head, token, seen, common, scores);
}

// Places that a token does not see are left out, not weighed with 0: so it is summed alike wherever its branch lies.
void attend(const Attention& task) {
  std::vector<int32_t> places(task.tokens * task.room);
  std::vector<Seen> seen;
  int64_t common = task.room;
  for (int64_t t = 0; t < task.tokens; t++) {
    int32_t *first = places.data() + t * task.room, *next = first;
    for (int64_t place = 0; place < task.room; place++) {
      *next = place;
      next += task.mask[t * task.room + place] == 0;
    }
    seen.push_back({first, next - first});
    common = std::min<int64_t>(common, seen[t].count);
    common = std::mismatch(first, first + common, seen[0].places).first - first;
  }
  const auto some = task.size == 64    ? attend_some<MOST_TOKENS, 64 / LANES>
                    : task.size == 128 ? attend_some<MOST_TOKENS, 128 / LANES>
                                       : attend_some<MOST_TOKENS, 0>;
  // Few products are done before a helper has come.
  const int64_t products = task.heads * task.tokens * common * task.size;
  crew().share(task.heads, products < FEW_PRODUCTS ? task.heads : 1, [&](int64_t head, int64_t end) {
    std::vector<float> scores(MOST_TOKENS * (task.room + LANES));
    for (; head < end; head++)
      for (int64_t t = 0; t < task.tokens; t += MOST_TOKENS)
        some(task, head, t, std::min<int64_t>(MOST_TOKENS, task.tokens - t), seen.data(), common, scores.data());
  });
}

// ------------------------------------------------------------------------------------ tensors of compiled programs

float* floats(AtenTensorHandle tensor) {
  void* data = nullptr;
  aoti_torch_get_data_ptr(tensor, &data);
  return static_cast<float*>(data);
}

int64_t size(AtenTensorHandle tensor, int64_t dimension) {
  int64_t found = 0;
  aoti_torch_get_size(tensor, dimension, &found);
  return found;
}

int64_t stride(AtenTensorHandle tensor, int64_t dimension) {
  int64_t found = 0;
  aoti_torch_get_stride(tensor, dimension, &found);
  return found;
}

int32_t dtype(AtenTensorHandle tensor) {
  int32_t found = 0;
  aoti_torch_get_dtype(tensor, &found);
  return found;
}

// A new contiguous float32 tensor; returns torch's error code.
AOTITorchError make(std::vector<int64_t> sizes, AtenTensorHandle* made) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size() - 1; i > 0; i--) strides[i - 1] = strides[i] * sizes[i];
  return aoti_torch_empty_strided(
      sizes.size(), sizes.data(), strides.data(), aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, made);
}

// dtype: torch's number of it. bfloat16 has the inputs rounded as well, if the processor multiplies that; in int16 lie
// weights in bfloat16 for inputs as they are; on grids, in int8 codes of 8 bits, in int64 sixteen of 4 bits; in few bits, in
// uint8 codes of 8 bits, in int32 eight of 4 bits.
struct Given {
  const void *weights, *scales;
  const float* bias;
  int64_t outputs;
  float* out;
  int32_t dtype;
};

// Layers over the same inputs, at most MOST_BESIDE. Those of one dtype are computed together.
void compute(const Given* given, int32_t count, const float* x, int64_t rows, int64_t inputs) {
  int32_t next = 1;
  while (next < count && given[next].dtype == given->dtype) next++;
  const auto run = [&](auto kind) {
    decltype(kind) layers[MOST_BESIDE];
    float* outs[MOST_BESIDE];
    for (int i = 0; i < next; i++) {
      const Given& one = given[i];
      const auto scales = static_cast<decltype(kind.scales)>(one.scales);
      layers[i] = {static_cast<const int32_t*>(one.weights), scales, one.bias, inputs, one.outputs};
      outs[i] = one.out;
    }
    linear(layers, next, x, outs, rows);
  };
  const int32_t dtype = given->dtype;
  if (dtype == aoti_torch_dtype_float32()) run(Layer<1, float>());
  if (dtype == aoti_torch_dtype_bfloat16()) run(Layer<2, std::conditional_t<MULTIPLIES_PAIRS, Pair, float>>());
  if (dtype == aoti_torch_dtype_int16()) run(Layer<2, float>());
  if (dtype == aoti_torch_dtype_int8()) run(Layer<4, float>());
  if (dtype == aoti_torch_dtype_int64()) run(std::conditional_t<MULTIPLIES_BYTES, GridCodes, Layer<8, float>>());
  if (dtype == aoti_torch_dtype_uint8()) run(Codes<8>());
  if (dtype == aoti_torch_dtype_int32()) run(Codes<4>());
  if (next < count) compute(given + next, count - next, x, rows, inputs);
}

struct Handed {
  AtenTensorHandle weights, scales, *bias;
  int64_t outputs;
  AtenTensorHandle* out;
};

template <int COUNT>
AOTITorchError linears(AtenTensorHandle x, const Handed (&handed)[COUNT]) {
  const int64_t rows = size(x, 0), inputs = size(x, 1);
  Given given[COUNT];
  for (int i = 0; i < COUNT; i++) {
    const Handed& one = handed[i];
    if (const auto error = make({rows, one.outputs}, one.out)) return error;
    given[i] = {floats(one.weights), floats(one.scales), one.bias ? floats(*one.bias) : nullptr,
                one.outputs,         floats(*one.out),   dtype(one.weights)};
  }
  compute(given, COUNT, floats(x), rows, inputs);
  return AOTI_TORCH_SUCCESS;
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

void few_rows_attention(
    const float* queries, const float* keys, const float* values, const float* mask, float* out, int64_t heads,
    int64_t shared, int64_t tokens, int64_t room, int64_t size, int64_t head_stride, int64_t token_stride, float scale) {
  attend(
      {queries, keys, values, mask, out, heads, shared, tokens, room, size, head_stride, token_stride, scale});
}

AOTITorchError aoti_torch_cpu_few_rows_linear(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scales, AtenTensorHandle* bias, int64_t outputs,
    AtenTensorHandle* out) {
  return linears(x, {{weights, scales, bias, outputs, out}});
}

AOTITorchError aoti_torch_cpu_few_rows_linear_two(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scales, AtenTensorHandle* bias, int64_t outputs,
    AtenTensorHandle weights_1, AtenTensorHandle scales_1, AtenTensorHandle* bias_1, int64_t outputs_1,
    AtenTensorHandle* out, AtenTensorHandle* out_1) {
  return linears(x, {{weights, scales, bias, outputs, out}, {weights_1, scales_1, bias_1, outputs_1, out_1}});
}

AOTITorchError aoti_torch_cpu_few_rows_linear_three(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scales, AtenTensorHandle* bias, int64_t outputs,
    AtenTensorHandle weights_1, AtenTensorHandle scales_1, AtenTensorHandle* bias_1, int64_t outputs_1,
    AtenTensorHandle weights_2, AtenTensorHandle scales_2, AtenTensorHandle* bias_2, int64_t outputs_2,
    AtenTensorHandle* out, AtenTensorHandle* out_1, AtenTensorHandle* out_2) {
  return linears(
      x, {{weights, scales, bias, outputs, out},
          {weights_1, scales_1, bias_1, outputs_1, out_1},
          {weights_2, scales_2, bias_2, outputs_2, out_2}});
}

AOTITorchError aoti_torch_cpu_few_rows_attention(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle mask, double scale,
    AtenTensorHandle* out) {
  const int64_t heads = size(query, 1), tokens = size(query, 2), width = size(query, 3);
  if (const auto error = make({1, tokens, heads, width}, out)) return error;
  few_rows_attention(
      floats(query), floats(key), floats(value), floats(mask), floats(*out), heads, size(key, 1), tokens, size(key, 2),
      width, stride(query, 1), stride(query, 2), scale);
  return AOTI_TORCH_SUCCESS;
}
}
