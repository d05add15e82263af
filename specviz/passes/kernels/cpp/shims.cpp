// The kernels as compiled programs call them, on torch's tensors (`operations.C_SHIMS`).
#include <algorithm>
#include <cstdint>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "given.h"

namespace {

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

// A new contiguous float32 tensor; returns torch's error code. A pass makes dozens, so nothing else is allocated for them.
AOTITorchError make(int64_t count, const int64_t* sizes, AtenTensorHandle* made) {
  int64_t strides[4], stride = 1;
  if (count > 4) return AOTI_TORCH_FAILURE;
  for (int64_t i = count - 1; i >= 0; stride *= sizes[i--]) strides[i] = stride;
  return aoti_torch_empty_strided(
      count, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, made);
}

template <int COUNT>
AOTITorchError make(const int64_t (&sizes)[COUNT], AtenTensorHandle* made) {
  return make(COUNT, sizes, made);
}

struct Handed {
  AtenTensorHandle weights, scales, *bias;
  int64_t outputs;
  AtenTensorHandle* out;
};

Given given_of(const Handed& one) {
  return {floats(one.weights), floats(one.scales), one.bias ? floats(*one.bias) : nullptr,
          one.outputs,         one.out ? floats(*one.out) : nullptr, dtype(one.weights)};
}

template <int COUNT>
AOTITorchError linears(AtenTensorHandle x, const Handed (&handed)[COUNT]) {
  const int64_t rows = size(x, 0), inputs = size(x, 1);
  Given given[COUNT];
  for (int i = 0; i < COUNT; i++) {
    if (const auto error = make({rows, handed[i].outputs}, handed[i].out)) return error;
    given[i] = given_of(handed[i]);
  }
  few_rows_linear(given, COUNT, floats(x), rows, inputs);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace

extern "C" {

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

AOTITorchError aoti_torch_cpu_few_rows_gated(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scales, AtenTensorHandle* bias, int64_t outputs,
    AtenTensorHandle weights_1, AtenTensorHandle scales_1, AtenTensorHandle* bias_1, int64_t outputs_1, int32_t tanh,
    AtenTensorHandle* out) {
  const int64_t rows = size(x, 0), inputs = size(x, 1);
  if (const auto error = make({rows, outputs}, out)) return error;
  const Given given[] = {
      given_of({weights, scales, bias, outputs, out}), given_of({weights_1, scales_1, bias_1, outputs_1, nullptr})};
  few_rows_gated(given, tanh, floats(x), rows, inputs);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_few_rows_copy(AtenTensorHandle x, AtenTensorHandle* out) {
  std::vector<int64_t> sizes;
  int64_t dimensions = 0, count = 1;
  aoti_torch_get_dim(x, &dimensions);
  for (int64_t i = 0; i < dimensions; i++) count *= sizes.emplace_back(size(x, i));
  if (const auto error = make(dimensions, sizes.data(), out)) return error;
  std::copy_n(floats(x), count, floats(*out));
  return AOTI_TORCH_SUCCESS;
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
