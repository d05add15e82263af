// Drafts, chains and trees, made in one call: passes of a compiled program, and the choice of tokens after each.
//
// From Python, a third of a short pass's time goes by before the next one: each streams its weights through the cache and
// pushes out of it the code that comes next. Here that code is a page long.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "choices.h"
#include "given.h"
#include "programs.h"

namespace {

// A value in float32 or bfloat16.
float widened(const Memory& memory, int64_t place) {
  if (memory.dtype == aoti_torch_dtype_float32()) return static_cast<const float*>(memory.data)[place];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(memory.data)[place]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// To the nearest, of two equally near ones the even one.
uint16_t rounded(float value) {
  if (std::isnan(value)) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// What a row of logits gains from the token before its own, W e[token].
struct Gain {
  Memory embedded;  // [vocab][rank], in float32 or bfloat16
  Given layer;      // W
  int64_t last;     // the text's last token

  // To `gains` [tokens][vocab].
  void after(const std::vector<int64_t>& before, std::vector<float>& gains) const {
    const int64_t rank = embedded.sizes[1], count = before.size();
    std::vector<float> read(count * rank);
    for (int64_t i = 0; i < count * rank; i++) read[i] = widened(embedded, before[i / rank] * rank + i % rank);
    gains.resize(count * layer.outputs);
    Given to = layer;
    to.out = gains.data();
    few_rows_linear(&to, 1, read.data(), count, rank);
  }
};

// How a head fuses the target's hidden states into what it reads with each token (`chains.Fusion`).
struct Fusion {
  int64_t norms;         // of equal parts of the states
  const float* weights;  // of all norms, one after the other; without a layer, what the states are divided by
  float epsilon;
  int64_t inputs;
  Given layer;    // without one, it has no weights, and as many outputs as there are inputs
  int32_t dtype;  // of what is made, float32 or bfloat16

  // To `out` [rows][outputs]. states: [rows][inputs].
  void fuse(const Memory& states, void* out) const {
    const int64_t rows = states.sizes[0], part = norms ? inputs / norms : 0;
    std::vector<float> read(rows * inputs), made(rows * layer.outputs), squares(part);
    for (size_t i = 0; i < read.size(); i++) read[i] = widened(states, i);
    if (!layer.weights)
      for (int64_t i = 0; i < rows * inputs; i++) made[i] = read[i] / weights[i % inputs];
    for (int64_t i = 0; i < rows * norms; i++) {
      float* values = &read[i * part];
      for (int64_t k = 0; k < part; k++) squares[k] = values[k] * values[k];
      const float scale = 1 / std::sqrt(sum(squares.data(), part) / part + epsilon);
      for (int64_t k = 0; k < part; k++) values[k] = weights[i % norms * part + k] * (values[k] * scale);
    }
    Given to = layer;
    to.out = made.data();
    if (layer.weights) few_rows_linear(&to, 1, read.data(), rows, inputs);
    if (dtype == aoti_torch_dtype_float32())
      std::copy(made.begin(), made.end(), static_cast<float*>(out));
    else
      std::transform(made.begin(), made.end(), static_cast<uint16_t*>(out), rounded);
  }
};

// A draft in the making, a chain or a tree.
struct Growing {
  Choice choice;
  int64_t vocab;
  const double* uniforms;
  int64_t *tokens, *parents;
  float *logits, *probs;  // see few_rows_draft
  int64_t count = 0, rows = 0;
  std::vector<int64_t> frontier = {-1};  // the last level's tokens
  std::vector<double> weights = {1};     // how likely each is to be reached, and kept
  std::vector<float> left;               // [vocab] of each row of the level, without what was drawn from it

  // The next level. given: a row of logits after each token of the frontier, `stride` apart.
  void grow(const float* given, int64_t stride) {
    const int64_t before = count;
    std::vector<int64_t> places;
    std::vector<double> reached;
    const auto add = [&](int64_t place, int64_t token, double chance) {
      tokens[count] = token;
      parents[count++] = frontier[place];
      places.push_back(place);
      reached.push_back(weights[place] * chance);
    };
    left.resize(vocab * frontier.size());
    if (!choice.temperature)
      take_likeliest(given, stride, add);
    else if (choice.as_paths)
      draw_paths(given, stride, add);
    else
      draw_siblings(given, stride, add);
    std::vector<bool> shown(frontier.size());
    for (int64_t place : places)
      if (!shown[place]) {
        shown[place] = true;
        std::copy_n(given + place * stride, vocab, logits + rows++ * vocab);
      }
    frontier.resize(count - before);
    for (int64_t i = before; i < count; i++) frontier[i - before] = i;
    weights = reached;
  }

  template <typename Add>
  void take_likeliest(const float* given, int64_t stride, const Add& add) {
    struct Candidate {
      double weight;
      int64_t place, token;
      float prob;
    };
    const auto known = [](double weight) { return weight > 0 ? weight : 0; };  // a NaN has no place in an order
    std::vector<Candidate> all;
    if (choice.branches == 1) return add(0, likeliest(given, vocab), 1);
    for (size_t place = 0; place < frontier.size(); place++) {
      float* softmax = left.data();
      warp(given + place * stride, vocab, 1, softmax);
      for (int64_t token : likeliest_few(softmax, vocab, choice.branches))
        all.push_back({known(weights[place] * softmax[token]), static_cast<int64_t>(place), token, softmax[token]});
    }
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
    all.resize(std::min<size_t>(all.size(), choice.branches));
    for (const Candidate& one : all) add(one.place, one.token, one.prob);
  }

  template <typename Add>
  void draw_paths(const float* given, int64_t stride, const Add& add) {
    for (size_t place = 0; place < frontier.size(); place++) warp_row(given, stride, place);
    for (int64_t path = 0; path < choice.branches; path++) {
      const int64_t place = frontier.size() == 1 ? 0 : path;
      float* q = std::copy_n(&left[place * vocab], vocab, probs + count * vocab) - vocab;
      add(place, draw(q, vocab, uniforms[count]), 1);
    }
  }

  // Each from its row without its elders, renormalised.
  template <typename Add>
  void draw_siblings(const float* given, int64_t stride, const Add& add) {
    std::vector<int64_t> limits;
    for (size_t place = 0; place < frontier.size(); place++) {
      const float* row = warp_row(given, stride, place);
      limits.push_back(vocab - std::count(row, row + vocab, 0.f));
    }
    const std::vector<int64_t> shares = deal(weights, choice.branches, limits);
    const int64_t most = *std::max_element(shares.begin(), shares.end());
    for (int64_t turn = 0; turn < most; turn++)
      for (size_t place = 0; place < frontier.size(); place++) {
        if (shares[place] <= turn) continue;
        float *row = &left[place * vocab], *q = std::copy_n(row, vocab, probs + count * vocab) - vocab;
        if (choice.branches > 1) normalise(q, vocab, sum(q, vocab));
        const int64_t token = draw(q, vocab, uniforms[count]);
        row[token] = 0;
        add(place, token, ACCEPTED * std::pow(1 - ACCEPTED, turn));
      }
  }

  float* warp_row(const float* given, int64_t stride, int64_t place) {
    float* row = &left[place * vocab];
    warp(given + place * stride, vocab, choice.temperature, row);
    return row;
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

// States [rows][inputs], in float32 or bfloat16, fused to `out` [rows][outputs].
void few_rows_fuse(const Fusion* fusion, const Memory* states, void* out) { fusion->fuse(*states, out); }

// Reads `count` unread tokens after `length` others, then drafts `levels` levels of tokens, of which it reads all but the
// last. features: a head's further input with the unread tokens, [count][width]; draft tokens it reads with its own states
// after their parents. None for models. in_place: whether all of this is read at the place after the text, writes nothing
// and sees the text alone; then one token is unread.
//
// Room is given for all that `levels` times `branches` tokens can be; returns how many were made, or -1 if a pass failed.
// tokens, parents: of each. logits: [rows][vocab], after the text, then after each token that is continued. probs: [tokens]
// [vocab], drawn from; none if the likeliest are taken. uniforms: one a token.
int64_t few_rows_draft(
    const Program* program, int64_t row_count, const Memory* rows, int64_t* unread, int64_t count, int64_t length,
    bool in_place, const Memory* features, const Fusion* fusion, int64_t levels, const Choice* choice, int64_t* tokens, int64_t* parents, float* logits,
    float* probs, const double* uniforms, int64_t vocab) {
  Growing draft = {*choice, vocab, uniforms, tokens, parents, logits, probs};
  try {
    const Text text(row_count, rows);
    const int64_t start = length + count;  // of the draft's places
    std::vector<char> states, chosen;      // after the text, then after each token read; of the parents of a level
    Memory given = features ? *features : Memory{};
    std::vector<char> fused;
    if (fusion) {
      given.dtype = fusion->dtype, given.sizes[1] = fusion->layer.outputs;
      fused.resize(count * given.sizes[1] * aoti_torch_dtype_element_size(given.dtype));
      given.data = fused.data();
      fusion->fuse(*features, given.data);
    }
    for (int64_t level = 0; level < levels; level++) {
      const int64_t read = level ? draft.frontier.size() : count, first = level ? start + draft.frontier[0] : length;
      std::vector<int64_t> positions(read);
      std::vector<uint8_t> visible(read * text.room);
      if (level && features) chosen.resize(read * states.size() / (1 + draft.frontier[0]));
      for (int64_t i = 0; i < read; i++) {
        uint8_t* sees = &visible[i * text.room];
        positions[i] = in_place ? length : level ? start + level - 1 : length + i;
        std::fill_n(sees, in_place ? length : level ? start : positions[i] + 1, 1);
        if (!level) continue;
        for (int64_t token = draft.frontier[i]; token >= 0 && !in_place; token = parents[token]) sees[start + token] = 1;
        if (!features) continue;
        const size_t bytes = chosen.size() / read, parent = parents[draft.frontier[i]] + 1;
        std::copy_n(&states[parent * bytes], bytes, &chosen[i * bytes]);
      }
      if (level && features) given.data = chosen.data(), given.sizes[0] = read;
      int64_t* token_ids = level ? tokens + draft.frontier[0] : unread;
      const Tensors made = program->pass(text, token_ids, read, first, positions, visible, features ? &given : nullptr);
      const Rows found(made[0]);
      if (found.width != vocab) throw Failed();
      draft.grow(reinterpret_cast<const float*>(found.data) + (level ? 0 : (read - 1) * vocab), vocab);
      if (!features) continue;
      const Rows after(made[1]);
      given.dtype = after.dtype, given.sizes[1] = after.width;
      const char* from = after.data + (level ? 0 : (read - 1) * after.bytes());
      states.insert(states.end(), from, after.data + read * after.bytes());
    }
  } catch (const Failed&) {
    return -1;
  }
  return draft.count;
}

// The same from rows of logits that are there already, one for each level: [levels][vocab]. gain: what they gain from the
// tokens before each, if anything.
int64_t few_rows_spread(
    const float* rows, const Gain* gain, int64_t levels, const Choice* choice, int64_t* tokens, int64_t* parents,
    float* logits, float* probs, const double* uniforms, int64_t vocab) {
  Growing draft = {*choice, vocab, uniforms, tokens, parents, logits, probs};
  std::vector<float> sums;
  for (int64_t level = 0; level < levels; level++) {
    const float* row = rows + level * vocab;
    if (!gain) {
      draft.grow(row, 0);
      continue;
    }
    std::vector<int64_t> before = {gain->last};
    if (level) before.assign(tokens + draft.frontier[0], tokens + draft.count);
    gain->after(before, sums);
    for (size_t i = 0; i < sums.size(); i++) sums[i] += row[i % vocab];
    draft.grow(sums.data(), vocab);
  }
  return draft.count;
}

// As few_rows_draft, by one pass over `count` unread tokens and masks. features: [count][width]; those of the masks are zeros.
int64_t few_rows_draft_at_once(
    const Program* program, int64_t row_count, const Memory* rows, const int64_t* unread, int64_t count, int64_t length,
    const OnePass* one_pass, const Memory* features, int64_t levels, const Choice* choice, int64_t* tokens, int64_t* parents,
    float* logits, float* probs, const double* uniforms, int64_t vocab) {
  try {
    const Text text(row_count, rows);
    std::vector<int64_t> ids(unread, unread + count);
    if (one_pass->reads_text) {
      ids.push_back(ids.back());
      ids.insert(ids.end(), one_pass->masks, one_pass->masks + one_pass->count);
    }
    const int64_t read = ids.size(), row_bytes = features->sizes[1] * aoti_torch_dtype_element_size(features->dtype);
    std::vector<char> inputs(read * row_bytes);
    std::copy_n(static_cast<const char*>(features->data), count * row_bytes, inputs.begin());
    const Memory given = {inputs.data(), features->dtype, 2, {read, features->sizes[1]}};
    std::vector<int64_t> positions(read);
    std::vector<uint8_t> visible(read * text.room);
    for (int64_t i = 0; i < read; i++) {
      positions[i] = length + i;
      std::fill_n(&visible[i * text.room], length + i + 1, 1);
    }
    const Tensors made = program->pass(text, ids.data(), read, length, positions, visible, &given);
    const Rows found(made[0]);
    int64_t found_rows = 0;
    check(aoti_torch_get_size(made[0], 0, &found_rows));
    if (found.width != vocab || found_rows < one_pass->skipped + levels) throw Failed();
    const float* first = reinterpret_cast<const float*>(found.data) + one_pass->skipped * vocab;
    const Gain* gain = static_cast<const Gain*>(one_pass->gain);
    Gain after = gain ? *gain : Gain{};
    after.last = unread[count - 1];
    return few_rows_spread(
        first, gain ? &after : nullptr, levels, choice, tokens, parents, logits, probs, uniforms, vocab);
  } catch (const Failed&) {
    return -1;
  }
}
}
