// A chain judged in one call: logits become probabilities, each draft token meets its coin, and the next token is drawn. The
// rules are those of rules/exact.py (TOKEN, BLOCK, MATCH), where they are explained.
#include "choices.h"

namespace {

// A draft of `count` tokens beside the target's probabilities: [count + 1][vocab], and those that the tokens were drawn from,
// [count][vocab]; none for point masses.
struct Chain {
  int64_t count, vocab;
  const int64_t* tokens;
  const float *target, *drafter;

  float p(int64_t i) const { return target[i * vocab + tokens[i]]; }
  float q(int64_t i) const { return drafter ? drafter[i * vocab + tokens[i]] : 1; }

  // max(0, share · p − q) of a row, to `left` [vocab]; returns its sum. After the last token nothing was drafted.
  float rest(int64_t row, float share, float* left) const {
    const float* from = target + row * vocab;
    if (drafter && row < count) {
      const float* taken = drafter + row * vocab;
      for (int64_t i = 0; i < vocab; i++) left[i] = std::max(share * from[i] - taken[i], 0.f);
    } else {
      for (int64_t i = 0; i < vocab; i++) left[i] = share * from[i];
      if (row < count) left[tokens[row]] = 0;
    }
    return sum(left, vocab);
  }

  // What the next token is drawn from: the rest of a row, or the row itself where there is none.
  void next(int64_t row, float share, float* left) const {
    const float total = rest(row, share, left);
    if (total > 0)
      scale(left, vocab, 1 / total);
    else
      std::copy_n(target + row * vocab, vocab, left);
  }

  // How many tokens are kept one by one, each while its coin is below its bound, min(1, p/q).
  int64_t kept_one_by_one(const double* coins, float* bounds) const {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
      bounds[i] = std::min(p(i) / q(i), 1.f);
      kept += kept == i && coins[i] < bounds[i];
    }
    return kept;
  }

  // How many are kept as a block: up to the last whose coin is below its bound. share: p_i of the last one kept, or 1.
  int64_t kept_as_block(const double* coins, float* bounds, float* left, float& share) const {
    double ratio = 1, highest = 1;
    int64_t kept = 0;
    share = 1;
    for (int64_t i = 0; i < count; i++) {
      ratio *= static_cast<double>(p(i)) / q(i);
      highest = std::max(highest, ratio);
      const float here = ratio / highest;
      const float more = here < 1 && i + 1 < count ? rest(i + 1, here, left) : 0;
      bounds[i] = i + 1 == count ? here : here < 1 ? more / (more + (1 - here)) : 1;
      if (coins[i] < bounds[i]) kept = i + 1, share = here;
    }
    return kept;
  }
};

}  // namespace

extern "C" {

// Judges n = `count` draft tokens by n + 1 rows of logits; returns how many of them are kept. At temperature 0 those that
// are the target's likeliest, and nothing is made but `told`.
//
// drafted: [n]. drawn_from: [n][vocab], the tokens' distributions; none for point masses. coins: [n]. u: one, for the next
// token. made: the running sums [vocab] in which that is drawn, in float64; then in float32 the rows' probabilities [n + 1]
// [vocab], those that it is drawn from [vocab], and p, q and the bound of each draft token's coin, [3][n]. told: the draft
// tokens, the next one, and each row's likeliest, [2n + 2].
int64_t few_rows_judge(
    const float* logits, int64_t count, int64_t vocab, float temperature, bool as_block, const int64_t* drafted,
    const float* drawn_from, const double* coins, const double* u, double* made, int64_t* told) {
  int64_t *choices = std::copy_n(drafted, count, told) + 1, kept = 0;
  for (int64_t row = 0; row <= count; row++) choices[row] = likeliest(logits + row * vocab, vocab);
  if (!temperature) {
    while (kept < count && drafted[kept] == choices[kept]) kept++;
    told[count] = choices[kept];
    return kept;
  }
  double* sums = made;
  float *probs = reinterpret_cast<float*>(sums + vocab), *left = probs + (count + 1) * vocab;
  float *p = left + vocab, *q = p + count, *bounds = q + count, share = 1;
  for (int64_t row = 0; row <= count; row++) warp(logits + row * vocab, vocab, temperature, probs + row * vocab);
  const Chain chain = {count, vocab, drafted, probs, drawn_from};
  for (int64_t i = 0; i < count; i++) p[i] = chain.p(i), q[i] = chain.q(i);
  kept = as_block ? chain.kept_as_block(coins, bounds, left, share) : chain.kept_one_by_one(coins, bounds);
  chain.next(kept, share, left);
  told[count] = draw(left, vocab, *u, sums);
  return kept;
}
}
