// From a row of logits to a token: the same functions to draft and to judge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lanes.h"

namespace {

inline float largest(const float* values, int64_t count) {
  float most = -std::numeric_limits<float>::infinity();
  Floats many = Floats{} + most;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) many = many > load(values + i) ? many : load(values + i);
  for (; i < count; i++) most = std::max(most, values[i]);
  for (int lane = 0; lane < LANES; lane++) most = std::max(most, many[lane]);
  return most;
}

// The first of the likeliest tokens. Always a token, even where logits are not numbers.
inline int64_t likeliest(const float* logits, int64_t vocab) {
  constexpr int64_t PART = 256;  // only one part is searched value by value, which is slow
  float most = -std::numeric_limits<float>::infinity();
  const float* found = logits;
  for (const float *part = logits, *end = logits + vocab; part < end; part += PART) {
    const float here = largest(part, std::min(PART, end - part));
    if (here > most) most = here, found = part;
  }
  return std::min(std::find(found, logits + vocab, most) - logits, vocab - 1);
}

inline float sum(const float* values, int64_t count) {
  Floats sums = {};
  float total = 0;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) sums += load(values + i);
  for (; i < count; i++) total += values[i];
  for (int lane = 0; lane < LANES; lane++) total += sums[lane];
  return total;
}

inline void scale(float* values, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

// softmax(logits / temperature), to `probs`.
inline void warp(const float* logits, int64_t vocab, float temperature, float* probs) {
  const float most = largest(logits, vocab) / temperature;
  const auto weigh = [&](Floats some) {
    const Floats below = some / temperature - most, weights = exponential(below);
    return below > Floats{} - 87.f ? weights : Floats{};
  };
  int64_t i = 0;
  for (; i + LANES <= vocab; i += LANES) store(probs + i, weigh(load(logits + i)));
  const Floats last = weigh(load_some(logits + i, vocab - i));
  std::memcpy(probs + i, &last, sizeof(float) * (vocab - i));
  scale(probs, vocab, 1 / sum(probs, vocab));
}

// The first token whose cumulative probability exceeds u times the last, as `draw` in sampling.py finds it. Always a
// token. The running sums go to `sums` [vocab].
inline int64_t draw(const float* probs, int64_t vocab, double u, double* sums) {
  double sum = 0;
  for (int64_t i = 0; i < vocab; i++) sums[i] = sum += probs[i];
  return std::min(std::upper_bound(sums, sums + vocab, u * sum) - sums, vocab - 1);
}

}  // namespace
