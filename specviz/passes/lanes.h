// Floats by the register: the compiler's own vectors, which GCC and Clang know on every processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

namespace {

// Floats in a register.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

inline Floats load(const float* from) {
  Floats loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

inline Ints load_words(const int32_t* from) {
  Ints loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

// The first `count` floats, then zeros.
inline Floats load_some(const float* from, int64_t count) {
  Floats loaded = {};
  std::memcpy(&loaded, from, sizeof(float) * std::min<int64_t>(count, LANES));
  return loaded;
}

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

// A number in all lanes. What is taken away changes none, not even −0.
inline Floats broadcast(float value) { return value - Floats{}; }

// sum + a · b, rounded once where the processor can do that. It is asked for by name: a compiler that may fuse as it
// likes does so in one function and not in the next, and a token's result would depend on what else is in its pass.
inline Floats add_product(Floats sum, Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, sum);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_FEATURE_FMA)
  return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

// Two numbers in bfloat16, the first in the lower half.
enum class Pair : int32_t {};

#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_PAIRS = true;

// Each sum, and the products of both numbers of its pair of weights with those of `inputs`, by one instruction.
inline Floats add_products(Floats sum, Ints weights, Pair inputs) {
  return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)(Ints{} + static_cast<int32_t>(inputs)));
}

inline void store_rounded(Pair* to, Floats values) {
  const __m256bh rounded = _mm512_cvtneps_pbh(values);
  std::memcpy(to, &rounded, sizeof rounded);
}
#else
constexpr bool MULTIPLIES_PAIRS = false;
#endif

// e to the power of x ≤ 0, to about 1e-7: a power of 2, times the Taylor series of what is left.
inline Floats exponential(Floats x) {
  constexpr float SHIFT = 12582912.f;  // 1.5 · 2^23: added and taken away, it leaves a whole number
  const Floats least = broadcast(-87.f);
  x = x > least ? x : least;
  const Floats whole = add_product(broadcast(SHIFT), x, broadcast(1.44269504f)) - SHIFT;
  // ln 2 in two parts, so that nothing of x is lost.
  const Floats rest = add_product(add_product(x, whole, broadcast(-0.693359375f)), whole, broadcast(2.12194440e-4f));
  Floats series = add_product(broadcast(1.f / 720), rest, broadcast(1.f / 5040));
  for (float factor : {1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f})
    series = add_product(broadcast(factor), series, rest);
  return series * reinterpret_cast<Floats>((__builtin_convertvector(whole, Ints) + 127) << 23);
}

}  // namespace
