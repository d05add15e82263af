// Linear layers as they are handed over from Python.
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

extern "C" {

// Layers over the same inputs, x [rows][inputs], each to its own `out` [rows][outputs].
void few_rows_linear(const Given* given, int32_t count, const float* x, int64_t rows, int64_t inputs);
}
