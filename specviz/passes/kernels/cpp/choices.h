// From a row of logits to tokens: the same functions to draft and to judge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.h"

namespace {

// NaN if there is one: it counts as the largest, as it does for torch.
inline float largest(const float* values, int64_t count) {
  float most = -std::numeric_limits<float>::infinity();
  Floats many = Floats{} + most;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Floats some = load(values + i);
    many = (some > many) | (some != some) ? some : many;
  }
  const auto meet = [&](float value) { most = value > most || value != value ? value : most; };
  for (; i < count; i++) meet(values[i]);
  for (int lane = 0; lane < LANES; lane++) meet(many[lane]);
  return most;
}

// Whether all are numbers, or minus infinity, which rules a token out.
inline bool are_numbers(const float* values, int64_t count) {
  const Floats none = Floats{} + std::numeric_limits<float>::infinity();
  Ints below = Ints{} - 1;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) below &= load(values + i) < none;
  bool all = true;
  for (; i < count; i++) all &= values[i] < none[0];
  for (int lane = 0; lane < LANES; lane++) all &= below[lane] != 0;
  return all;
}

// The first of the likeliest tokens, or the first whose logit is a NaN. Always a token, even where logits are not numbers.
inline int64_t likeliest(const float* logits, int64_t vocab) {
  constexpr int64_t PART = 256;  // only one part is searched value by value, which is slow
  float most = -std::numeric_limits<float>::infinity();
  const float* found = logits;
  for (const float *part = logits, *end = logits + vocab; part < end && most == most; part += PART) {
    const float here = largest(part, std::min(PART, end - part));
    if (!(here <= most)) most = here, found = part;
  }
  const auto is_most = [&](float value) { return value == most || value != value; };
  return std::min(std::find_if(found, logits + vocab, is_most) - logits, vocab - 1);
}

// The `few` likeliest tokens, best first; of equal ones the first. Fewer only if there are no more numbers.
inline std::vector<int64_t> likeliest_few(const float* probs, int64_t vocab, int64_t few) {
  constexpr int64_t PART = 256;
  std::vector<int64_t> found;
  for (int64_t part = 0; part < vocab; part += PART) {
    const int64_t end = std::min(part + PART, vocab);
    const bool full = static_cast<int64_t>(found.size()) == few;
    if (full && !(largest(probs + part, end - part) > probs[found.back()])) continue;
    for (int64_t i = part; i < end; i++) {
      if (static_cast<int64_t>(found.size()) == few) {
        if (!(probs[i] > probs[found.back()])) continue;
        found.pop_back();
      }
      const auto worse = [&](int64_t other) { return probs[i] > probs[other]; };
      found.insert(std::find_if(found.begin(), found.end(), worse), i);
    }
  }
  return found;
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

// So that they sum to 1, and not `sum`. By division: 1 / sum is infinite where the sum is less than float32's normal
// numbers.
inline void normalise(float* values, int64_t count, float sum) {
  for (int64_t i = 0; i < count; i++) values[i] /= sum;
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

// Their sum, added up in float64.
inline double sum_in_double(const float* values, int64_t count) {
  constexpr int64_t MANY = 16;  // sums, which do not wait for each other
  double sums[MANY] = {};
  int64_t i = 0;
  for (; i + MANY <= count; i += MANY)
    for (int64_t k = 0; k < MANY; k++) sums[k] += values[i + k];
  for (; i < count; i++) sums[0] += values[i];
  double total = 0;
  for (double some : sums) total += some;
  return total;
}

// The first token whose cumulative probability exceeds u times the last, as `draw` in sampling.py finds it; always a token, and
// none of probability 0. By the sums of parts, of which one alone is gone through: each running sum waits for the one before.
inline int64_t draw(const float* probs, int64_t vocab, double u) {
  constexpr int64_t PART = 256;
  std::vector<double> sums = {0};  // before each part
  for (int64_t part = 0; part < vocab; part += PART)
    sums.push_back(sums.back() + sum_in_double(probs + part, std::min(PART, vocab - part)));
  const double threshold = u * sums.back();
  const auto above = std::upper_bound(sums.begin(), sums.end(), threshold);
  if (above == sums.end()) return vocab - 1;  // what is not a number
  const int64_t part = above - sums.begin() - 1, end = std::min((part + 1) * PART, vocab);
  double sum = sums[part];
  int64_t found = vocab - 1;
  // Added up one by one, they may come to a little less: then it is the last that adds anything.
  for (int64_t i = part * PART; i < end && sum <= threshold; i++)
    if (probs[i] > 0) sum += probs[i], found = i;
  return found;
}

// Roughly how often a good drafter's draw is accepted, as in choosers.py.
constexpr double ACCEPTED = 0.7;

// Shares out `parts` in proportion to weights, as `deal` in choosers.py does.
inline std::vector<int64_t> deal(
    const std::vector<double>& weights, int64_t parts, const std::vector<int64_t>& limits) {
  const size_t count = weights.size();
  double total = 0;
  for (double weight : weights) total += weight;
  std::vector<double> exact(count);
  std::vector<int64_t> shares(count), order(count);
  int64_t rest = parts;
  for (size_t i = 0; i < count; i++) {
    exact[i] = total > 0 ? parts * weights[i] / total : static_cast<double>(parts) / count;
    rest -= shares[i] = static_cast<int64_t>(exact[i]);
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return shares[a] - exact[a] < shares[b] - exact[b];
  });
  for (int64_t i = 0; i < rest; i++) shares[order[i]]++;
  for (size_t i = 0; i < count; i++) shares[i] = std::min(shares[i], limits[i]);
  return shares;
}

}  // namespace
