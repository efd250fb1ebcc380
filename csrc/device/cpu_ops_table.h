// The reduction loop and the table of one instruction set. See cpu_ops.h.
//
// One step reduces `lanes × unroll` elements: rank 0's values are loaded first and the other ranks'
// are folded in, in rank order. The same step takes the tail, through a small padded copy.
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "device/cpu_lanes.h"
#include "device/cpu_ops.h"

#define DDA_STRING_(x) #x
#define DDA_STRING(x) DDA_STRING_(x)

namespace dda::DDA_ISA {

// Each reduction: fold(a, b) of two vectors, and finish(a, n) once at the end.
struct Keep {
  template <class V>
  static inline V finish(V a, int) {
    return a;
  }
};
struct Sum : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a + b;
  }
};
struct Avg : Sum {
  template <class V>
  static inline V finish(V a, int n) {
    using Scalar = decltype(a[0] + a[0]);
    return a / static_cast<Scalar>(n);
  }
};
struct Product : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a * b;
  }
};
struct Band : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a & b;
  }
};
struct Bor : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a | b;
  }
};
struct Bxor : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a ^ b;
  }
};
struct MinInt : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a < b ? a : b;
  }
};
struct MaxInt : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    return a < b ? b : a;
  }
};
// Of floats: a NaN on either side stays, and -0 is less than +0. Where the two are equal they
// differ in the sign of zero at most, so `or` or `and` of their bits picks the right zero.
struct MinFloat : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    using Mask = decltype(a < b);
    const V equal = bits_as<V>(bits_as<Mask>(a) | bits_as<Mask>(b));
    const V least = a < b ? a : (a == b ? equal : b);
    return a != a ? a : least;
  }
};
struct MaxFloat : Keep {
  template <class V>
  static inline V fold(V a, V b) {
    using Mask = decltype(a < b);
    const V equal = bits_as<V>(bits_as<Mask>(a) & bits_as<Mask>(b));
    const V most = a > b ? a : (a == b ? equal : b);
    return a != a ? a : most;
  }
};

// Signed overflow wraps: sums and products of integers are taken unsigned.
template <class T>
struct Unsigned {
  using type = T;
};
template <>
struct Unsigned<Int8> {
  using type = UInt8;
};
template <>
struct Unsigned<Int16> {
  using type = UInt16;
};
template <>
struct Unsigned<Int32> {
  using type = UInt32;
};
template <>
struct Unsigned<Int64> {
  using type = UInt64;
};

// kWidth: how many stored values make an element (2 for complex).
template <int kCount>
struct Unroll {
  static constexpr int value = kCount;
};

template <class Lane, class Op, int kWidth = 1>
static void reduce(void* dst, const void* const* srcs, int n, uint64_t count) {
  using Values = typename Lane::Values;
  using Stored = typename Lane::Stored;
  constexpr int kLanes = Lane::kLanes;
  count *= kWidth;

  const auto at = [](const void* base, uint64_t i) {
    return static_cast<const char*>(base) + i * sizeof(Stored);
  };
  const auto step = [&](uint64_t i, auto unroll, auto load, auto store) {
    constexpr int kUnroll = decltype(unroll)::value;
    Values sum[kUnroll];
    for (int u = 0; u < kUnroll; ++u) sum[u] = load(at(srcs[0], i + u * kLanes));
    for (int r = 1; r < n; ++r) {
      for (int u = 0; u < kUnroll; ++u) {
        sum[u] = Op::fold(sum[u], load(at(srcs[r], i + u * kLanes)));
      }
    }
    for (int u = 0; u < kUnroll; ++u) {
      store(const_cast<char*>(at(dst, i + u * kLanes)), Op::finish(sum[u], n));
    }
  };

  uint64_t i = 0;
  const auto load = [](const void* p) { return Lane::load(p); };
  const auto store = [](void* p, Values v) { Lane::store(p, v); };
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) step(i, Unroll<4>{}, load, store);
  for (; i + kLanes <= count; i += kLanes) step(i, Unroll<1>{}, load, store);
  if (i == count) return;
  const uint64_t tail = (count - i) * sizeof(Stored);
  const auto load_tail = [&](const void* p) {
    Stored padded[kLanes] = {};
    __builtin_memcpy(padded, p, tail);
    return Lane::load(padded);
  };
  const auto store_tail = [&](void* p, Values v) {
    Stored padded[kLanes];
    Lane::store(padded, v);
    __builtin_memcpy(p, padded, tail);
  };
  step(i, Unroll<1>{}, load_tail, store_tail);
}

// Complex numbers lie as pairs (re, im); their product is the one reduction that sees the pairs.
template <class Real>
static void complex_product(void* dst, const void* const* srcs, int n, uint64_t count) {
  const Real nan = static_cast<Real>(__builtin_nan(""));
  Real* out = static_cast<Real*>(dst);
  for (uint64_t i = 0; i < 2 * count; i += 2) {
    Real re = static_cast<const Real*>(srcs[0])[i];
    Real im = static_cast<const Real*>(srcs[0])[i + 1];
    for (int r = 1; r < n; ++r) {
      const Real* b = static_cast<const Real*>(srcs[r]) + i;
      const Real product = re * b[0] - im * b[1];
      im = re * b[1] + im * b[0];
      re = product;
    }
    out[i] = re != re ? nan : re;
    out[i + 1] = im != im ? nan : im;
  }
}

template <class Lane, int kWidth = 1>
static void scale(void* dst, const void* src, uint64_t count, double factor) {
  using Stored = typename Lane::Stored;
  constexpr int kLanes = Lane::kLanes;
  const auto f = static_cast<typename Lane::Value>(factor);
  count *= kWidth;
  for (uint64_t i = 0; i < count; i += kLanes) {
    const uint64_t here = count - i < uint64_t{kLanes} ? count - i : kLanes;
    Stored padded[kLanes] = {};
    __builtin_memcpy(padded, static_cast<const Stored*>(src) + i, here * sizeof(Stored));
    Lane::store(padded, Lane::load(padded) * f);
    __builtin_memcpy(static_cast<Stored*>(dst) + i, padded, here * sizeof(Stored));
  }
}

static void copy(void* dst, const void* src, uint64_t bytes) { __builtin_memcpy(dst, src, bytes); }

#if defined(__x86_64__)
static void copy_stream(void* dst, const void* src, uint64_t bytes) {
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  uint64_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  if (head > bytes) head = bytes;
  __builtin_memcpy(to, from, head);
  uint64_t i = head;
  for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
#else
    for (int q = 0; q < 64; q += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + q),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + q)));
    }
#endif
  }
  __builtin_memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}
#else
static void copy_stream(void* dst, const void* src, uint64_t bytes) { copy(dst, src, bytes); }
#endif

// clang-format off
#define DDA_INT(T, Wide) { reduce<typename Unsigned<T>::type, Sum>, reduce<Wide, Avg>, \
    reduce<typename Unsigned<T>::type, Product>, reduce<T, MinInt>, reduce<T, MaxInt>, \
    reduce<T, Band>, reduce<T, Bor>, reduce<T, Bxor>, nullptr }
#define DDA_FLOAT(T) { reduce<T, Sum>, reduce<T, Avg>, reduce<T, Product>, reduce<T, MinFloat>, \
    reduce<T, MaxFloat>, nullptr, nullptr, nullptr, reduce<T, Sum> }
#define DDA_COMPLEX(T, Real) { reduce<T, Sum, 2>, reduce<T, Avg, 2>, complex_product<Real>, \
    nullptr, nullptr, nullptr, nullptr, nullptr, reduce<T, Sum, 2> }

// Rows in the order of DType, columns in the order of ReduceOp. Exported across namespaces only
// through this table, so that no symbol compiled for a new machine can replace one for an old.
extern const CpuOps kOps;
const CpuOps kOps = {
    DDA_STRING(DDA_ISA),
    {
        DDA_INT(UInt8, WideInt<UInt8::Stored>), DDA_INT(Int8, WideInt<Int8::Stored>), DDA_INT(UInt16, WideInt<UInt16::Stored>), DDA_INT(Int16, WideInt<Int16::Stored>),
        DDA_INT(UInt32, WideInt<UInt32::Stored>), DDA_INT(Int32, WideInt<Int32::Stored>), DDA_INT(UInt64, UInt64), DDA_INT(Int64, WideInt<Int64::Stored>),
        {reduce<Bool, Bor>, nullptr, reduce<Bool, Band>, reduce<Bool, Band>, reduce<Bool, Bor>,
         reduce<Bool, Band>, reduce<Bool, Bor>, reduce<Bool, Bxor>, nullptr},
        DDA_FLOAT(Float16), DDA_FLOAT(BFloat16), DDA_FLOAT(Float32), DDA_FLOAT(Float64),
        DDA_COMPLEX(Float32, float), DDA_COMPLEX(Float64, double),
        DDA_FLOAT(Float8E4M3), DDA_FLOAT(Float8E5M2),
        {}, {}, {}, {},
    },
    {
        nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
        scale<Float16>, scale<BFloat16>, scale<Float32>, scale<Float64>,
        scale<Float32, 2>, scale<Float64, 2>, scale<Float8E4M3>, scale<Float8E5M2>,
        nullptr, nullptr, nullptr, nullptr,
    },
    copy,
    copy_stream,
};
// clang-format on
#undef DDA_INT
#undef DDA_FLOAT
#undef DDA_COMPLEX

}  // namespace dda::DDA_ISA
