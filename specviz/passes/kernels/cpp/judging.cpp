// Drafts, chains and trees, judged in one call by the rules of rules/exact.py (TOKEN, BLOCK, TREE, MATCH), where they are
// explained: logits become probabilities, draft tokens meet their coins, and the next token is drawn.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "choices.h"

namespace {

// A draft of `count` tokens, and the target's probabilities: [count + 1][vocab], and those that the tokens were drawn from,
// [count][vocab]; none for point masses.
struct Drafted {
  int64_t count, vocab;
  const int64_t *tokens, *parents;
  const float *target, *drafter;

  const float* row(int64_t number) const { return target + number * vocab; }
  float p(int64_t i) const { return row(parents[i] + 1)[tokens[i]]; }
  float q(int64_t i) const { return drafter ? drafter[i * vocab + tokens[i]] : 1; }

  // What is left of a row, times a share, once token i is rejected: max(0, share · from − q), to `left`; returns its sum.
  float reject(int64_t i, float share, const float* from, float* left) const {
    if (drafter) {
      const float* taken = drafter + i * vocab;
      for (int64_t x = 0; x < vocab; x++) left[x] = std::max(share * from[x] - taken[x], 0.f);
    } else {
      for (int64_t x = 0; x < vocab; x++) left[x] = share * from[x];
      left[tokens[i]] = 0;
    }
    return sum(left, vocab);
  }

  // p of each token once its elder siblings are rejected, which take no more than their own p.
  void points_left(float* p_left) const {
    std::vector<float> rejected(count + 1);
    for (int64_t i = 0; i < count; i++) {
      float& elders = rejected[parents[i] + 1];
      p_left[i] = p(i) / std::max({1 - elders, p(i), std::numeric_limits<float>::min()});
      elders += p(i);
    }
  }

  // Walks down from the root, to the first child of each node whose coin is below its bound, p_left/q. The accepted tokens go
  // to `path`, what is left in the end to `left` [vocab]; returns how many are accepted.
  int64_t walk(const double* coins, float* p_left, float* bounds, float* left, int64_t* path) const {
    std::vector<float> further(drafter ? vocab : 0);
    int64_t node = -1, accepted = 0;
    bool normal = false;  // whether `left` sums to 1 already
    if (!drafter) points_left(p_left);
    std::copy_n(row(0), vocab, left);
    for (int64_t i = 0; i < count; i++) {
      if (drafter) p_left[i] = parents[i] == node ? left[tokens[i]] : p(i);
      bounds[i] = std::min(p_left[i] / q(i), 1.f);
      if (parents[i] != node) continue;
      if (coins[i] < bounds[i]) {
        path[accepted++] = node = i;
        std::copy_n(row(node + 1), vocab, left);
        normal = false;
      } else if (!drafter) {
        left[tokens[i]] = 0;
      } else if (const float total = reject(i, 1, left, further.data()); total > 0) {
        normalise(further.data(), vocab, total);
        std::copy_n(further.data(), vocab, left);
        normal = true;
      }
    }
    if (normal) return accepted;
    const float total = sum(left, vocab);
    if (total > 0)
      normalise(left, vocab, total);
    else
      std::copy_n(row(node + 1), vocab, left);
    return accepted;
  }

  // How many tokens of a chain are accepted as a block: up to the last whose coin is below its bound.
  int64_t accept_block(const double* coins, float* bounds, float* left) const {
    double ratio = 1, highest = 1;
    float share = 1;  // p_i of the last one accepted
    int64_t accepted = 0;
    for (int64_t i = 0; i < count; i++) {
      ratio *= static_cast<double>(p(i)) / q(i);
      highest = std::max(highest, ratio);
      const float here = ratio / highest;
      const float more = here < 1 && i + 1 < count ? reject(i + 1, here, row(i + 1), left) : 0;
      bounds[i] = i + 1 == count ? here : here < 1 ? more / (more + (1 - here)) : 1;
      if (coins[i] < bounds[i]) accepted = i + 1, share = here;
    }
    const float total = accepted < count ? reject(accepted, share, row(accepted), left) : 0;
    if (total > 0)
      normalise(left, vocab, total);
    else
      std::copy_n(row(accepted), vocab, left);
    return accepted;
  }
};

}  // namespace

extern "C" {

// Judges n = `count` draft tokens by n + 1 rows of logits; returns how many of them are accepted. At temperature 0 those
// that are the target's likeliest, and nothing is made but `told`. −1 if logits are not numbers, −2 if the drafter's are not.
//
// drafted, parents: [n]. draft_logits: [draft_rows][vocab], or probabilities; n rows are one for each token, whose own place
// is looked at, since a NaN is always chosen. drawn_from: [n][vocab], the tokens' distributions; none for point masses.
// coins: [n]. u: one, for the next token. made: the rows' probabilities [n + 1][vocab], those that the next token is drawn from
// [vocab], and p, q, p once the elder siblings are rejected and the bound of each draft token's coin, [4][n]. told: the accepted
// tokens' places, with room for n, and each row's likeliest [n + 1]; and the next token.
int64_t few_rows_judge(
    const float* logits, int64_t count, int64_t vocab, float temperature, bool as_block, const int64_t* drafted,
    const int64_t* parents, const float* draft_logits, int64_t draft_rows, const float* drawn_from, const double* coins,
    const double* u, float* made, int64_t* told) {
  if (!are_numbers(logits, (count + 1) * vocab)) return -1;
  for (int64_t row = 0; row < draft_rows; row++) {
    const int64_t first = draft_rows == count ? drafted[row] : 0, some = draft_rows == count ? 1 : vocab;
    if (!are_numbers(draft_logits + row * vocab + first, some)) return -2;
  }
  int64_t *path = told, *choices = told + count, *next = choices + count + 1, accepted = 0;
  for (int64_t row = 0; row <= count; row++) choices[row] = likeliest(logits + row * vocab, vocab);
  if (!temperature) {
    int64_t node = -1;
    for (int64_t i = 0; i < count; i++)
      if (parents[i] == node && drafted[i] == choices[node + 1]) path[accepted++] = node = i;
    *next = choices[node + 1];
    return accepted;
  }
  float *probs = made, *left = probs + (count + 1) * vocab;
  float *p = left + vocab, *q = p + count, *p_left = q + count, *bounds = p_left + count;
  for (int64_t row = 0; row <= count; row++) warp(logits + row * vocab, vocab, temperature, probs + row * vocab);
  const Drafted draft = {count, vocab, drafted, parents, probs, drawn_from};
  for (int64_t i = 0; i < count; i++) p[i] = p_left[i] = draft.p(i), q[i] = draft.q(i), path[i] = i;
  accepted = as_block ? draft.accept_block(coins, bounds, left) : draft.walk(coins, p_left, bounds, left, path);
  *next = draw(left, vocab, *u);
  return accepted;
}
}
