// Gated layers: of two over the same inputs, the activation of one's outputs times the other's.
//
// The thread that has made some outputs of both goes on with them while they are in its cache: left to one thread, seven rows
// of activations took a twentieth of a pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "crew.h"
#include "lanes.h"

namespace {

struct Gate {
  float* out;            // [rows][outputs]: the gate's outputs, then what comes of them
  const float* up;       // [rows][outputs], the other layer's
  int64_t rows, outputs;
  bool tanh;             // GELU in its approximation by a hyperbolic tangent, or else SiLU

  // g times the logistic function, of g or of GELU's polynomial in it.
  Floats activated(Floats g) const {
    // 2 · sqrt(2 / π), for tanh x = 2 · logistic(2 x) - 1.
    const Floats x = tanh ? 1.5957691216f * add_product(g, g * g * g, broadcast(0.044715f)) : g;
    const Floats size = x > 0 ? x : -x;
    // `exponential` goes no lower than e to the −87: below it the share is 0, or else it would grow with g.
    const Floats small = size < 87 ? exponential(-size) : Floats{};
    return g * (x > 0 ? broadcast(1.f) : small) / (small + 1);
  }

  // All rows' outputs from `first` to `last`.
  void apply(int64_t first, int64_t last) const {
    for (int64_t row = 0; row < rows; row++) {
      float* to = out + row * outputs;
      const float* with = up + row * outputs;
      int64_t i = first;
      for (; i + LANES <= last; i += LANES) store(to + i, activated(load(to + i)) * load(with + i));
      if (i == last) continue;
      const Floats left = activated(load_some(to + i, last - i)) * load_some(with + i, last - i);
      for (int64_t k = 0; i + k < last; k++) to[i + k] = left[k];
    }
  }
};

// write(i, first, end) for the panels of each of `count` layers, by all threads. gate: if the first one is the other's; these
// are two, and have as many outputs.
template <class Layer, class Write>
void share_outputs(const Layer* layers, int count, const Gate* gate, const Write& write) {
  if (!gate) return share_panels(layers, count, write);
  const int64_t panels = (gate->outputs + PANEL - 1) / PANEL;
  crew().share(panels, GROUP, [&](int64_t first, int64_t end) {
    for (int64_t last; first < end; first = last) {
      last = std::min(first + GROUP, end);
      for (int i = 0; i < count; i++) write(i, first, last);
      gate->apply(first * PANEL, std::min(last * PANEL, gate->outputs));
    }
  }, layers[count - 1].panel(panels));
}

}  // namespace
