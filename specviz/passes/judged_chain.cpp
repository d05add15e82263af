// A chain judged in one call, as rules/token_by_token.py judges it and explains it: logits become probabilities, each draft
// token meets its coin, and the next token is drawn.
#include "choices.h"

namespace {

// norm(max(0, p − q)) to `left`, all [vocab]; p itself where nothing is left. No q: all on the one token.
void residual(const float* p, const float* q, int64_t token, int64_t vocab, float* left) {
  for (int64_t i = 0; i < vocab; i++) left[i] = q ? std::max(p[i] - q[i], 0.f) : p[i];
  if (!q) left[token] = 0;
  if (!normalise(left, vocab)) std::copy_n(p, vocab, left);
}

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
    const float* logits, int64_t count, int64_t vocab, float temperature, const int64_t* drafted, const float* drawn_from,
    const double* coins, const double* u, double* made, int64_t* told) {
  int64_t *choices = std::copy_n(drafted, count, told) + 1, kept = 0;
  for (int64_t row = 0; row <= count; row++) choices[row] = likeliest(logits + row * vocab, vocab);
  if (!temperature) {
    while (kept < count && drafted[kept] == choices[kept]) kept++;
    told[count] = choices[kept];
    return kept;
  }
  double* sums = made;
  float *probs = reinterpret_cast<float*>(sums + vocab), *left = probs + (count + 1) * vocab;
  float *p = left + vocab, *q = p + count, *bounds = q + count;
  for (int64_t row = 0; row <= count; row++) warp(logits + row * vocab, vocab, temperature, probs + row * vocab);
  for (int64_t i = 0; i < count; i++) {
    p[i] = probs[i * vocab + drafted[i]];
    q[i] = drawn_from ? drawn_from[i * vocab + drafted[i]] : 1;
    bounds[i] = std::min(p[i] / q[i], 1.f);
    kept += kept == i && coins[i] < bounds[i];
  }
  const float* row = probs + kept * vocab;
  if (kept == count)
    std::copy_n(row, vocab, left);
  else
    residual(row, drawn_from ? drawn_from + kept * vocab : nullptr, drafted[kept], vocab, left);
  told[count] = draw(left, vocab, *u, sums);
  return kept;
}
}
