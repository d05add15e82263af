// Attention over few tokens: what several of them see is read once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "crew.h"
#include "lanes.h"

namespace {

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
constexpr int MOST_TOKENS = 7;

// Fewer products than these are not shared among threads.
constexpr int64_t FEW_PRODUCTS = 1 << 15;

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
    const Floats below = load(scores + i) - largest;
    const Floats weights = below == below ? exponential(below) : below;  // what is no number shows in the logits
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

}  // namespace
