// Chains in one call. Drafted: passes of a compiled program, and the choice of a token after each. Judged: logits become
// probabilities, each draft token meets its coin, and the next token is drawn.
//
// From Python, a third of a short pass's time goes by before the next one: each streams its weights through the cache and
// pushes out of it the code that comes next. Here that code is a page long.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "choices.h"

namespace {

struct Failed {};

void check(AOTITorchError error) {
  if (error) throw Failed();
}

// A contiguous tensor's memory, which is the caller's.
struct Memory {
  void* data;
  int32_t dtype;
  int64_t dimensions;
  int64_t sizes[4];
};

// Tensors of torch's that are ours to free.
struct Tensors : std::vector<AtenTensorHandle> {
  Tensors() = default;
  Tensors(Tensors&&) = default;
  ~Tensors() {
    for (AtenTensorHandle each : *this)
      if (each) aoti_torch_delete_tensor_object(each);
  }

  AtenTensorHandle add(const Memory& memory) {
    std::vector<int64_t> strides(memory.dimensions, 1);
    for (int64_t i = memory.dimensions - 1; i > 0; i--) strides[i - 1] = strides[i] * memory.sizes[i];
    push_back(nullptr);
    check(aoti_torch_create_tensor_from_blob(
        memory.data, memory.dimensions, memory.sizes, strides.data(), 0, memory.dtype, aoti_torch_device_type_cpu(), 0,
        &back()));
    return back();
  }

  void add_again(AtenTensorHandle tensor) {
    push_back(nullptr);
    check(aoti_torch_new_tensor_handle(tensor, &back()));
  }
};

// A function of AOTInductor's C interface to programs (aoti_runtime/interface.h), of which torch has had several.
template <typename... Arguments>
struct Function {
  AOTITorchError (*place)(Arguments...);

  Function(void* library, const char* name) : place(nullptr) {
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) throw Failed();
    std::memcpy(&place, &found, sizeof place);
  }

  void operator()(Arguments... arguments) const { check(place(arguments...)); }
};

// A weight by its name within the program.
struct Constant {
  const char* name;
  AtenTensorHandle handle;
};

using Handle = void*;
using Named = Function<Handle, size_t, const char**>;

// A program, opened on weights that stay where they are.
struct Program {
  void* library;  // stays loaded, as torch leaves it
  Function<Handle, AtenTensorHandle*, size_t, AtenTensorHandle*, size_t, void*, void*> run;
  Function<Handle> close;
  Handle handle = nullptr;
  size_t outputs = 0;  // logits, and states
  Tensors weights;

  // file: its shared library. by_name: the weights that it may ask for.
  Program(const char* file, const std::map<std::string, Memory>& by_name)
      : library(dlopen(file, RTLD_NOW)),
        run(library, "AOTInductorModelContainerRun"),
        close(library, "AOTInductorModelContainerDelete") {
    const Function<Handle*, size_t, const char*, const char*> create(
        library, "AOTInductorModelContainerCreateWithDevice");
    const Function<Handle, size_t*> count_outputs(library, "AOTInductorModelContainerGetNumOutputs");
    const Function<Handle, size_t*> count_constants(library, "AOTInductorModelContainerGetNumConstants");
    const Named name(library, "AOTInductorModelContainerGetConstantName");
    const Named original_name(library, "AOTInductorModelContainerGetConstantOriginalFQN");
    const Function<Handle, const Constant*, size_t, bool, bool> use(
        library, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs");
    create(&handle, 1, "cpu", nullptr);
    count_outputs(handle, &outputs);
    size_t count = 0;
    count_constants(handle, &count);
    std::vector<Constant> constants(count);
    for (size_t i = 0; i < count; i++) {
      const char* original = nullptr;
      name(handle, i, &constants[i].name);
      original_name(handle, i, &original);
      if (!by_name.count(original)) throw Failed();
      constants[i].handle = weights.add(by_name.at(original));
    }
    use(handle, constants.data(), count, false, true);
  }

  ~Program() { close(handle); }
};

struct Text {
  const Program& program;
  Tensors rows;  // keys and values of each layer in turn
  int64_t room;  // places in each of them

  // One pass over `count` tokens after `length` others, each with its row of `states` if there are any; the last one's
  // logits go to `logits` [vocab]. Returns the last one's own state, [1][width], if states were given.
  Tensors pass(
      int64_t* token_ids, int64_t count, int64_t length, const Tensors& states, float* logits, int64_t vocab) const {
    std::vector<int64_t> places(count);
    std::vector<uint8_t> visible(count * room);
    for (int64_t i = 0; i < count; i++) {
      places[i] = length + i;
      std::fill_n(visible.begin() + i * room, places[i] + 1, 1);
    }
    Tensors inputs, outputs, last;
    inputs.add({token_ids, aoti_torch_dtype_int64(), 1, {count}});
    inputs.add({places.data(), aoti_torch_dtype_int64(), 1, {count}});  // their positions
    inputs.add_again(inputs.back());
    inputs.add({visible.data(), aoti_torch_dtype_bool(), 2, {count, room}});
    for (AtenTensorHandle each : states) inputs.add_again(each);
    for (AtenTensorHandle each : rows) inputs.add_again(each);
    outputs.resize(program.outputs);
    std::vector<AtenTensorHandle> given(inputs);
    inputs.clear();  // the program takes them over
    program.run(program.handle, given.data(), given.size(), outputs.data(), outputs.size(), nullptr, nullptr);
    void* all = nullptr;
    int64_t width = 0;
    check(aoti_torch_get_size(outputs[0], 1, &width));
    check(aoti_torch_get_data_ptr(outputs[0], &all));
    if (width != vocab) throw Failed();
    std::memcpy(logits, static_cast<float*>(all) + (count - 1) * vocab, sizeof(float) * vocab);
    if (!states.empty()) {
      check(aoti_torch_get_size(outputs[1], 1, &width));
      const int64_t sizes[] = {1, width}, strides[] = {width, 1};
      last.push_back(nullptr);
      check(aoti_torch__reinterpret_tensor(outputs[1], 2, sizes, strides, (count - 1) * width, &last.back()));
    }
    return last;
  }
};

}  // namespace

extern "C" {

// weights: all that the program may ask for, by name. Returns none if it cannot be opened.
Program* few_rows_open(const char* file, int64_t count, const char* const* names, const Memory* weights) {
  std::map<std::string, Memory> by_name;
  for (int64_t i = 0; i < count; i++) by_name[names[i]] = weights[i];
  try {
    return new Program(file, by_name);
  } catch (const Failed&) {
    return nullptr;
  }
}

void few_rows_close(Program* program) { delete program; }

// The token drawn with u from softmax(logits / temperature), which goes to `probs` [vocab]; if that is none, the first of
// the likeliest. Always a token, even where logits are not numbers.
int64_t few_rows_choose(const float* logits, int64_t vocab, float temperature, double u, float* probs) {
  static thread_local std::vector<double> sums;
  if (!probs) return likeliest(logits, vocab);
  sums.resize(vocab);
  warp(logits, vocab, temperature, probs);
  return draw(probs, vocab, u, sums.data());
}

// Reads `count` unread tokens after `length` others, then drafts `steps` tokens, of which it reads all but the last.
// features: a head's further input with the unread tokens, [count][width]; later ones it reads with its own states. None for
// models. tokens: [steps]. logits, probs: [steps][vocab]; no probs if the likeliest tokens are taken. uniforms: [steps].
AOTITorchError few_rows_draft(
    const Program* program, int64_t row_count, const Memory* rows, int64_t* unread, int64_t count, int64_t length,
    const Memory* features, int64_t steps, int64_t* tokens, float* logits, float* probs, const double* uniforms,
    int64_t vocab, float temperature) {
  try {
    Text text = {*program, {}, rows[0].sizes[2]};
    for (int64_t i = 0; i < row_count; i++) text.rows.add(rows[i]);
    Tensors states;
    if (features) states.add(*features);
    for (int64_t step = 0; step < steps; step++) {
      float *row = logits + step * vocab, *drawn_from = probs ? probs + step * vocab : nullptr;
      Tensors next = step == 0 ? text.pass(unread, count, length, states, row, vocab)
                               : text.pass(tokens + step - 1, 1, length + count + step - 1, states, row, vocab);
      states.swap(next);
      tokens[step] = few_rows_choose(row, vocab, temperature, uniforms[step], drawn_from);
    }
  } catch (const Failed&) {
    return AOTI_TORCH_FAILURE;
  }
  return AOTI_TORCH_SUCCESS;
}
}

// Judging, by the rules of rules/exact.py (TOKEN, BLOCK, MATCH), where they are explained.
namespace {

// A draft of `count` tokens, and the target's probabilities: [count + 1][vocab], and those that the tokens were drawn from,
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
