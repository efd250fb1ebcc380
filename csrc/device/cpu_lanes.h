// How each dtype is read into lanes, reduced there, and written back. Included once for each
// instruction set, inside its own namespace: nothing here may be shared between them.
//
// A Lane<dtype> names the type in memory (`Stored`), the type in which values are reduced
// (`Value`), and the number of lanes of one vector (`kLanes`). 8- and 16-bit floats are reduced in
// float32 and rounded once, to nearest even; a NaN leaves as the one canonical NaN of its type.
#pragma once

namespace dda::DDA_ISA {

template <class T, int kCount>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kCount)));
};
template <class T, int kCount>
using Vector = typename VectorOf<T, kCount>::type;

template <class To, class From>
static inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <class V>
static inline V read(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
static inline void write(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

// Values that are reduced as they are stored.
template <class T, int kBytes = DDA_VECTOR_BYTES>
struct PlainLane {
  using Stored = T;
  using Value = T;
  static constexpr int kLanes = kBytes / sizeof(T);
  using Values = Vector<T, kLanes>;
  static inline Values load(const void* p) { return read<Values>(p); }
  static inline void store(void* p, Values v) { write<Values>(p, v); }
};

struct UInt8 : PlainLane<uint8_t> {};
struct Int8 : PlainLane<int8_t> {};
struct UInt16 : PlainLane<uint16_t> {};
struct Int16 : PlainLane<int16_t> {};
struct UInt32 : PlainLane<uint32_t> {};
struct Int32 : PlainLane<int32_t> {};
struct UInt64 : PlainLane<uint64_t> {};
struct Int64 : PlainLane<int64_t> {};

// Any byte but zero is true; only 0 and 1 are written.
struct Bool : PlainLane<uint8_t> {
  static inline Values load(const void* p) { return bits_as<Values>(PlainLane::load(p) != 0) & 1; }
};

template <class T, class Bits>
struct FloatLane : PlainLane<T> {
  using Values = typename PlainLane<T>::Values;
  static inline void store(void* p, Values v) {
    const Values nan = Values{} + static_cast<T>(__builtin_nan(""));
    write<Values>(p, v != v ? nan : v);
  }
};
struct Float32 : FloatLane<float, uint32_t> {};
struct Float64 : FloatLane<double, uint64_t> {};

inline constexpr int kFloatLanes = DDA_VECTOR_BYTES / 4;
using Floats = Vector<float, kFloatLanes>;
using Words = Vector<uint32_t, kFloatLanes>;
using Halves = Vector<uint16_t, kFloatLanes>;
using Bytes = Vector<uint8_t, kFloatLanes>;

struct BFloat16 {
  using Stored = uint16_t;
  using Value = float;
  static constexpr int kLanes = kFloatLanes;
  using Values = Floats;
  static inline Values load(const void* p) {
    return bits_as<Floats>(__builtin_convertvector(read<Halves>(p), Words) << 16);
  }
  static inline void store(void* p, Values v) {
    const Words bits = bits_as<Words>(v);
    const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const Words kept = v != v ? Words{} + 0x7fc0 : rounded;
    write<Halves>(p, __builtin_convertvector(kept, Halves));
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Value = float;
  static constexpr int kLanes = kFloatLanes;
  using Values = Floats;
#if defined(__F16C__) && DDA_VECTOR_BYTES == 64
  static inline Values load(const void* p) {
    return bits_as<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
  }
  static inline Halves narrow(Values v) {
    return bits_as<Halves>(_mm512_cvtps_ph(bits_as<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__F16C__) && DDA_VECTOR_BYTES == 32
  static inline Values load(const void* p) {
    return bits_as<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static inline Halves narrow(Values v) {
    return bits_as<Halves>(_mm256_cvtps_ph(bits_as<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
  }
#else
  // A half's exponent and fraction, moved up, are a float too small by 2^112: one multiplication
  // mends it, for subnormals too. Infinities and NaNs need the float's own exponent.
  static inline Values load(const void* p) {
    const Words half = __builtin_convertvector(read<Halves>(p), Words);
    const Words magnitude = (half & 0x7fff) << 13;
    const Floats finite = bits_as<Floats>(magnitude) * 0x1p112f;
    const Words special = magnitude | 0x7f800000;
    const Words chosen = (half & 0x7c00) == 0x7c00 ? special : bits_as<Words>(finite);
    return bits_as<Floats>(chosen | (half & 0x8000) << 16);
  }
  static inline Halves narrow(Values v) {
    const Words bits = bits_as<Words>(v);
    const Words magnitude = bits & 0x7fffffff;
    // Subnormal halves: adding a half puts the fraction where it belongs, rounded by the adder.
    const Floats shifted = bits_as<Floats>(magnitude) + 0.5f;
    const Words subnormal = bits_as<Words>(shifted) - 0x3f000000;
    const Words normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    Words half = magnitude < (113u << 23) ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;  // rounds to infinity
    return __builtin_convertvector(half | (bits >> 16 & 0x8000), Halves);
  }
#endif
  static inline void store(void* p, Values v) {
    const Words wide = __builtin_convertvector(narrow(v), Words);
    const Words kept = v != v ? Words{} + 0x7e00 : wide;
    write<Halves>(p, __builtin_convertvector(kept, Halves));
  }
};

// float8 with E exponent and M fraction bits. kFinite: no infinities, and the all-ones pattern
// alone is NaN (e4m3fn); what is too large becomes the largest number there, infinity otherwise.
template <int kExponent, int kFraction, bool kFinite>
struct Float8 {
  using Stored = uint8_t;
  using Value = float;
  static constexpr int kLanes = kFloatLanes;
  using Values = Floats;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kShift = 23 - kFraction;
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kFraction;

  static inline Values load(const void* p) {
    const Words byte = __builtin_convertvector(read<Bytes>(p), Words);
    const Words magnitude = byte & 0x7f;
    const float scale = bits_as<float>(static_cast<uint32_t>(127 - kBias + 127) << 23);
    const Words finite = bits_as<Words>(bits_as<Floats>(magnitude << kShift) * scale);
    const Words special = (magnitude << kShift) | 0x7f800000;
    const Words is_special =
        kFinite ? bits_as<Words>(magnitude == kNan) : bits_as<Words>(magnitude >= kInfinity);
    return bits_as<Floats>((is_special != 0 ? special : finite) | (byte & 0x80) << 24);
  }
  static inline void store(void* p, Values v) {
    constexpr uint32_t kSmallest = static_cast<uint32_t>(127 - kBias + 1) << 23;  // normal
    const Words bits = bits_as<Words>(v);
    const Words magnitude = bits & 0x7fffffff;
    // The number whose last bit weighs as much as the smallest subnormal.
    const float adder = bits_as<float>(static_cast<uint32_t>(127 - kBias + 1 + kShift) << 23);
    const Floats shifted = bits_as<Floats>(magnitude) + adder;
    const Words subnormal = bits_as<Words>(shifted) - bits_as<uint32_t>(adder);
    const uint32_t rebias = static_cast<uint32_t>(127 - kBias) << 23;
    const uint32_t half = (1u << (kShift - 1)) - 1;
    const Words normal = (magnitude - rebias + half + (magnitude >> kShift & 1)) >> kShift;
    Words byte = magnitude < kSmallest ? subnormal : normal;
    const uint32_t largest = kFinite ? kNan - 1 : kInfinity - 1;
    const uint32_t beyond = kFinite ? largest : kInfinity;
    // Compare as the rounded value, before a carry could run over.
    const Words large = bits_as<Words>(magnitude >= (static_cast<uint32_t>(127 + kBias + 2) << 23));
    byte = (large != 0) | (byte > largest) ? Words{} + beyond : byte;
    byte = v != v ? Words{} + kNan : byte;
    const Words sign = v != v ? Words{} : bits >> 24 & 0x80;
    write<Bytes>(p, __builtin_convertvector(byte | sign, Bytes));
  }
};
struct Float8E4M3 : Float8<4, 3, true> {};
struct Float8E5M2 : Float8<5, 2, false> {};

// Integers whose sum is taken in 64 bits, for the average.
template <class T>
struct WideInt {
  using Stored = T;
  using Value = int64_t;
  static constexpr int kLanes = DDA_VECTOR_BYTES / 8;
  using Values = Vector<int64_t, kLanes>;
  using Narrow = Vector<T, kLanes>;
  static inline Values load(const void* p) {
    return __builtin_convertvector(read<Narrow>(p), Values);
  }
  static inline void store(void* p, Values v) {
    write<Narrow>(p, __builtin_convertvector(v, Narrow));
  }
};

}  // namespace dda::DDA_ISA
