// What Python and compiled programs hand over.
#pragma once

#include <cstdint>

// dtype: torch's number of it. bfloat16 has the inputs rounded as well, if the processor multiplies that; in int16 lie
// weights in bfloat16 for inputs as they are; in few bits, in uint8 codes of 8 bits, in int32 eight of 4 bits. Those of
// weights on grids are `grids.GRIDS`'.
struct Given {
  const void *weights, *scales;
  const float* bias;
  int64_t outputs;
  float* out;
  int32_t dtype;
};

// How a drafter turns rows of logits into tokens, as specviz/drafters/choosers.py explains it.
struct Choice {
  int64_t branches;   // tokens of each level
  float temperature;  // 0: the likeliest tokens
  bool as_paths;      // drawn without regard to each other, and each path goes on by itself
};

// How one pass makes all rows of a draft (`chains.OnePass`).
struct OnePass {
  bool reads_text;       // its new tokens, then its last one once more, and masks; or else the last one alone, after nothing
  int64_t count;         // of masks
  const int64_t* masks;
  int64_t skipped;       // rows before the first that drafts
  const void* gain;      // see few_rows_spread
};

extern "C" {

// Layers over the same inputs, x [rows][inputs], each to its own `out` [rows][outputs].
void few_rows_linear(const Given* given, int32_t count, const float* x, int64_t rows, int64_t inputs);

// Two layers of as many outputs, of which the first is the other's gate: SiLU or, if `tanh`, GELU of its outputs, times the
// other's. To the first one's `out` [rows][outputs]; the other's is not used.
void few_rows_gated(const Given* given, bool tanh, const float* x, int64_t rows, int64_t inputs);

// queries: [heads][tokens][size], with these strides. keys, values: [shared][room][size]. mask: [tokens][room], 0 where a token
// sees a place. out: [tokens][heads][size].
void few_rows_attention(
    const float* queries, const float* keys, const float* values, const float* mask, float* out, int64_t heads,
    int64_t shared, int64_t tokens, int64_t room, int64_t size, int64_t head_stride, int64_t token_stride, float scale);
}
