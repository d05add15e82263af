// Linear layers over few tokens with weights on grids: in codes that stand for them to the bit, multiplied as float32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lanes.h"

namespace {

// Codes of 8 bits, GRID of which share a scale: with a sign, and a weight is code · scale; or without, and an offset is
// added, which they share too. Scale: float, or Half.
template <class Code, int GRID, class Scale>
struct GridBytes {
  using Input = float;
  static constexpr bool OFFSETS = std::is_unsigned_v<Code>;
  static constexpr int SCALES = OFFSETS ? 2 : 1;

  const Code* weights;  // [panels][groups][GRID][PANEL], last panel and last group filled up
  const Scale* scales;  // [panels][groups][SCALES][PANEL]
  const float* bias;    // [outputs], or none
  int64_t inputs, outputs;

  static constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }

  int64_t groups() const { return (inputs + GRID - 1) / GRID; }
  int64_t filled_up() const { return groups() * GRID; }
  int64_t wide() const { return filled_up() + (OFFSETS ? groups() : 0); }  // of a row of inputs, with its sums
  const void* panel(int64_t number) const { return weights + number * groups() * GRID * PANEL; }
};

// Codes of 4 bits, 32 of which share a scale and an offset. A word has those of eight inputs: of the first four in the lower
// halves of its bytes, of the others in the upper.
template <class Scale>
struct GridHalves {
  using Input = float;
  static constexpr int GRID = 32, PLACES = 8, WORDS = GRID / PLACES;

  const int32_t* weights;  // [panels][groups][WORDS][PANEL], last panel and last group filled up
  const Scale* scales;     // [panels][groups][2][PANEL]
  const float* bias;       // [outputs], or none
  int64_t inputs, outputs;

  static constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }
  static constexpr int input_at(int place) { return place % 2 * 4 + place / 2; }

  int64_t groups() const { return (inputs + GRID - 1) / GRID; }
  int64_t filled_up() const { return groups() * GRID; }
  int64_t wide() const { return filled_up() + groups(); }
  const void* panel(int64_t number) const { return weights + number * groups() * WORDS * PANEL; }
};

// Sums of groups of inputs, which offsets are multiplied with, after the rows: [inputs][count], then [groups][count].
template <class Code, int GRID, class Scale>
void make_ready(const GridBytes<Code, GRID, Scale>& layer, float* rows, int64_t count) {
  if constexpr (!GridBytes<Code, GRID, Scale>::OFFSETS) return;
  float* total = rows + layer.filled_up() * count;
  for (int64_t g = 0; g < layer.groups(); g++, total += count) {
    std::fill_n(total, count, 0.f);
    for (int k = 0; k < GRID; k++, rows += count)
      for (int64_t r = 0; r < count; r++) total[r] += rows[r];
  }
}

// The same, and inputs by their places: codes of 4 bits are converted where they lie in their words, which makes them larger
// by a power of 2 that is taken off the inputs here. The last of a word, where a sign would be, is moved down.
template <class Scale>
void make_ready(const GridHalves<Scale>& layer, float* rows, int64_t count) {
  float* total = rows + layer.filled_up() * count;
  for (int64_t g = 0; g < layer.groups(); g++, total += count) {
    std::fill_n(total, count, 0.f);
    for (int w = 0; w < layer.WORDS; w++, rows += layer.PLACES * count)
#pragma GCC unroll 8
      for (int place = 0; place < layer.PLACES; place++) {
        const float share = place + 1 < layer.PLACES ? 1.f / (1 << place * 4) : 1;
        float* row = rows + layer.input_at(place) * count;
        for (int64_t r = 0; r < count; r++) {
          total[r] += row[r];
          row[r] *= share;
        }
      }
  }
}

// Adds to `sums` a group's `part` times its scales, and its offsets times the `totals` [ROWS] of its inputs, if there are any.
// scales: of the group in the first of PANELS panels, whose next is `stride` further.
template <int SCALES, int ROWS, int WIDE, class Scale>
inline void add_group(
    const Floats (&part)[ROWS][WIDE], const Scale* scales, int64_t stride, const float* totals, float* sums) {
#pragma GCC unroll 16
  for (int i = 0; i < WIDE; i++) {
    const Scale* from = scales + i / 2 * stride + i % 2 * LANES;
    if (i * sizeof(Scale) * LANES % (4 * LINE) == 0)
#pragma GCC unroll 2
      for (int s = 0; s < SCALES; s++) {
        __builtin_prefetch(from + s * PANEL + SCALES * AHEAD / 8);
        __builtin_prefetch(from + s * PANEL + SCALES * AHEAD * 2, 0, 2);
      }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      float* sum = sums + (r * WIDE + i) * LANES;
      Floats more = add_product(load(sum), part[r][i], load(from));
      if constexpr (SCALES == 2) more = add_product(more, broadcast(totals[r]), load(from + PANEL));
      store(sum, more);
    }
  }
}

// rows from `make_ready` times PANELS panels from `panel` on. sums: [ROWS][PANELS][PANEL].
template <int ROWS, int PANELS, class Code, int GRID, class Scale>
void multiply(const GridBytes<Code, GRID, Scale>& layer, const float* rows, int64_t panel, float* sums) {
  constexpr int WIDE = 2 * PANELS, SCALES = GridBytes<Code, GRID, Scale>::SCALES;
  const int64_t groups = layer.groups();
  const float* totals = rows + layer.filled_up() * ROWS;
  std::fill_n(sums, ROWS * PANELS * PANEL, 0.f);
  for (int64_t g = 0; g < groups; g++) {
    const Code* codes = layer.weights + (panel * groups + g) * GRID * PANEL;
    Floats part[ROWS][WIDE] = {};
    for (int k = 0; k < GRID; k++) {
      Floats weight[WIDE];
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        const Code* from = codes + i / 2 * groups * GRID * PANEL + k * PANEL + i % 2 * LANES;
        if (i % 2 == 0) {
          __builtin_prefetch(from + 2 * AHEAD);
          __builtin_prefetch(from + 32 * AHEAD, 0, 2);
        }
        weight[i] = __builtin_convertvector(load_bytes(from), Floats);
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
        for (int i = 0; i < WIDE; i++)
          part[r][i] = add_product(part[r][i], weight[i], broadcast(rows[k * ROWS + r]));
    }
    rows += GRID * ROWS;
    const Scale* scales = layer.scales + (panel * groups + g) * SCALES * PANEL;
    add_group<SCALES>(part, scales, groups * SCALES * PANEL, totals + g * ROWS, sums);
  }
}

template <int ROWS, int PANELS, class Scale>
void multiply(const GridHalves<Scale>& layer, const float* rows, int64_t panel, float* sums) {
  constexpr int WIDE = 2 * PANELS, PLACES = GridHalves<Scale>::PLACES, WORDS = GridHalves<Scale>::WORDS;
  const int64_t groups = layer.groups();
  const float* totals = rows + layer.filled_up() * ROWS;
  Ints masks[PLACES - 1];
  for (int place = 0; place + 1 < PLACES; place++) masks[place] = Ints{} + (15 << place * 4);
  std::fill_n(sums, ROWS * PANELS * PANEL, 0.f);
  for (int64_t g = 0; g < groups; g++) {
    Floats part[ROWS][WIDE] = {};
#pragma GCC unroll 1
    for (int w = 0; w < WORDS; w++) {
      Ints words[WIDE];
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        const int32_t* from = layer.weights + (((panel + i / 2) * groups + g) * WORDS + w) * PANEL + i % 2 * LANES;
        if (i * LANES % LINE == 0) {
          __builtin_prefetch(from + AHEAD / 2);
          __builtin_prefetch(from + 8 * AHEAD, 0, 2);
        }
        words[i] = load_words(from);
      }
#pragma GCC unroll 16
      for (int place = 0; place < PLACES; place++) {
        const bool last = place + 1 == PLACES;
        Ints& mask = masks[last ? 0 : place];
        // Masks and inputs are read where they are needed: or else sums live in memory, for want of registers.
        asm volatile("" : "+m"(mask) : : "memory");
        Floats weight[WIDE];
#pragma GCC unroll 16
        for (int i = 0; i < WIDE; i++) {
          const Ints code = (last ? words[i] >> place * 4 : words[i]) & mask;
          weight[i] = __builtin_convertvector(code, Floats);
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
          for (int i = 0; i < WIDE; i++)
            part[r][i] = add_product(part[r][i], weight[i], broadcast(rows[(w * PLACES + layer.input_at(place)) * ROWS + r]));
      }
    }
    rows += layer.GRID * ROWS;
    add_group<2>(part, layer.scales + (panel * groups + g) * 2 * PANEL, groups * 2 * PANEL, totals + g * ROWS, sums);
  }
}

}  // namespace
