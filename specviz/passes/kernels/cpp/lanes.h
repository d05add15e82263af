// Floats by the register: the compiler's own vectors, which GCC and Clang know on every processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

// AMD's processors, whose memory wants other requests than Intel's. GCC may take a later Zen for the third.
#if defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
#define ZEN
#endif

// Zen 5, which unlike Zen 4 has AVX-VNNI. It reads weights in bfloat16 faster in one stream than in several side by side. For
// these and for codes its memory is best asked a short way ahead, into the second cache alone.
#if defined(ZEN) && defined(__AVXVNNI__)
constexpr bool ONE_STREAM = true;
#else
constexpr bool ONE_STREAM = false;
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

// Outputs in a panel of weights: two registers. How many panels share a stretch of work, and the words that memory brings
// at a time.
constexpr int64_t PANEL = 2 * LANES, GROUP = 4, LINE = 16;

// How many registers there are at least, and how many rows' sums they hold at two registers a row, beside four for all else.
constexpr int REGISTERS = LANES == 16 ? 32 : 16, MOST_ROWS = (REGISTERS - 4) / 2;

// How many floats ahead memory is asked, so that it has answered when they are needed.
constexpr int64_t AHEAD = 1024;

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

// A number in float16.
enum class Half : uint16_t {};

inline Floats load(const Half* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX__) && defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  // As the bits of a float32 it is less by a power of 2, which exponents differ by.
  Ints bits;
  for (int lane = 0; lane < LANES; lane++) bits[lane] = static_cast<uint16_t>(from[lane]);
  const Ints sign = (bits & 0x8000) << 16;
  const Floats size = reinterpret_cast<Floats>((bits & 0x7fff) << 13) * 0x1p112f;
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(size) | sign);
#endif
}

// Numbers of 8 bits, with a sign or without, each in a lane. A compiler asked to convert its vectors of them takes them apart.
template <class Byte>
inline Ints load_bytes(const Byte* from) {
  [[maybe_unused]] constexpr bool SIGN = std::is_signed_v<Byte>;
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Ints)(SIGN ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (Ints)(SIGN ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  Ints loaded;
  for (int lane = 0; lane < LANES; lane++) loaded[lane] = from[lane];
  return loaded;
#endif
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

// To multiply pairs takes a Xeon four times as long as to multiply floats.
#if defined(__AVX512BF16__) && defined(ZEN)
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

// Products of whole numbers, four of which lie in each lane, a byte each; `inputs`, from −127 to 127, are the same for all
// lanes. add_codes adds those of codes up to 15, up to eight times: sums may lie in halves of 16 bits, which `whole_sums`
// adds. add_bytes adds those of codes up to 255 which stand for numbers less by 128; where codes are multiplied as they are,
// RAISED times the sum of the inputs is yet to be taken off.
// MULTIPLIES_BYTES: four products, and their sum, by one instruction.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr bool MULTIPLIES_BYTES = true;
#else
constexpr bool MULTIPLIES_BYTES = false;
#endif

#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
#define SUMS_IN_HALVES

inline Ints whole_sums(Ints sums) { return (Ints)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1)); }

inline Ints in_halves(Ints codes, Ints inputs) { return (Ints)_mm512_maddubs_epi16((__m512i)codes, (__m512i)inputs); }

inline Ints add_halves(Ints a, Ints b) { return (Ints)_mm512_add_epi16((__m512i)a, (__m512i)b); }

inline Ints sizes(Ints numbers) { return (Ints)_mm512_abs_epi8((__m512i)numbers); }

inline Ints with_sign(Ints inputs, Ints of) {
  const __m512i x = (__m512i)inputs;
  return (Ints)_mm512_mask_sub_epi8(x, _mm512_movepi8_mask((__m512i)of), _mm512_setzero_si512(), x);
}
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define SUMS_IN_HALVES

inline Ints whole_sums(Ints sums) { return (Ints)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1)); }

inline Ints in_halves(Ints codes, Ints inputs) { return (Ints)_mm256_maddubs_epi16((__m256i)codes, (__m256i)inputs); }

inline Ints add_halves(Ints a, Ints b) { return (Ints)_mm256_add_epi16((__m256i)a, (__m256i)b); }

inline Ints sizes(Ints numbers) { return (Ints)_mm256_abs_epi8((__m256i)numbers); }

inline Ints with_sign(Ints inputs, Ints of) { return (Ints)_mm256_sign_epi8((__m256i)inputs, (__m256i)of); }
#endif

#if defined(SUMS_IN_HALVES)
constexpr int RAISED = 0;

inline Ints add_codes(Ints sums, Ints codes, int32_t inputs) {
  return add_halves(sums, in_halves(codes, Ints{} + inputs));
}

// The product of two numbers may take 15 bits, and so two of them, but not four.
inline Ints add_bytes(Ints sums, Ints codes, int32_t inputs) {
  const Ints numbers = codes ^ static_cast<int32_t>(0x80808080);
  return sums + whole_sums(in_halves(sizes(numbers), with_sign(Ints{} + inputs, numbers)));
}
#else
constexpr int RAISED = 128;

inline Ints add_bytes(Ints sums, Ints codes, int32_t inputs) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(inputs));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, _mm256_set1_epi32(inputs));
#else
  for (int place = 0; place < 32; place += 8) sums += (codes >> place & 255) * static_cast<int8_t>(inputs >> place);
  return sums;
#endif
}

inline Ints add_codes(Ints sums, Ints codes, int32_t inputs) { return add_bytes(sums, codes, inputs); }

inline Ints whole_sums(Ints sums) { return sums; }
#endif

// Writes sums of ROWS rows to `out` [ROWS][outputs] of a layer, from its output `first` on, with its bias.
template <class Layer, int ROWS, int WIDTH>
inline void write_sums(const Layer& layer, const float (&sums)[ROWS][WIDTH], int64_t first, float* out) {
  const int64_t count = std::min<int64_t>(WIDTH, layer.outputs - first);
  for (int r = 0; r < ROWS; r++)
    for (int64_t i = 0; i < count; i++)
      out[r * layer.outputs + first + i] = layer.bias ? sums[r][i] + layer.bias[first + i] : sums[r][i];
}

// The two bfloat16s in each lane as floats.
inline Floats lower_half(Ints pairs) { return reinterpret_cast<Floats>(pairs << 16); }

inline Floats upper_half(Ints pairs) { return reinterpret_cast<Floats>(pairs & static_cast<int32_t>(0xffff0000)); }

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
