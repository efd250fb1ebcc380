// A reduction of one dtype on a GPU, as the algorithms see it: each thread reduces packs of 16
// bytes, the values of all ranks in rank order.
#pragma once

#include "device/gpu/block.h"
#include "device/gpu/element.h"

namespace dda::gpu {

// A pack as elements of E.
template <class E, int kBytes = kPackBytes>
struct Values {
  static constexpr int kCount = kBytes / sizeof(typename E::Stored);
  typename E::Value at[kCount];
};

// Element `i` of a pack lies at its byte i * sizeof(Stored), in memory and here.
template <class E, int kBytes>
__device__ inline Values<E, kBytes> unpack(const Pack& pack) {
  typename E::Stored stored[kPackBytes / sizeof(typename E::Stored)];
  memcpy(stored, &pack, sizeof(pack));
  Values<E, kBytes> v;
#pragma unroll
  for (int k = 0; k < Values<E, kBytes>::kCount; ++k) v.at[k] = E::load(stored[k]);
  return v;
}
template <class E, int kBytes>
__device__ inline Pack repack(const Values<E, kBytes>& v) {
  typename E::Stored stored[kPackBytes / sizeof(typename E::Stored)] = {};
#pragma unroll
  for (int k = 0; k < Values<E, kBytes>::kCount; ++k) stored[k] = E::store(v.at[k]);
  Pack pack;
  memcpy(&pack, stored, sizeof(pack));
  return pack;
}

template <class E, bool kSum>
struct GpuReducer {
  using Unit = typename E::Unit;
  ReduceOp op;
  double factor;

  // Whether values change on the way into a slot; a rank's own must then take that way too.
  __device__ bool scales() const { return kSum && op == ReduceOp::kPremulSum; }

  // A pack of `kBytes` bytes, of which `left` are there.
  template <int kBytes>
  __device__ static Pack read(const void* from, uint64_t left) {
    return read_pack<Unit, kBytes>(from, left);
  }
  template <int kBytes>
  __device__ Pack scaled(const Pack& pack) const {
    Values<E, kBytes> v = unpack<E, kBytes>(pack);
#pragma unroll
    for (auto& value : v.at) value = scale(value, factor);
    return repack<E, kBytes>(v);
  }
  // Folds in rank r's pack; ranks come in order.
  template <int kBytes>
  __device__ void include(Values<E, kBytes>& sum, const Pack& pack, int r) const {
    const Values<E, kBytes> v = unpack<E, kBytes>(pack);
#pragma unroll
    for (int k = 0; k < Values<E, kBytes>::kCount; ++k) {
      sum.at[k] = r == 0 ? v.at[k] : fold<E, kSum>(op, sum.at[k], v.at[k]);
    }
  }
  template <int kBytes>
  __device__ void write(void* to, Values<E, kBytes> sum, int n, uint64_t left) const {
    if (kSum && op == ReduceOp::kAvg) {
#pragma unroll
      for (auto& value : sum.at) value = divide(value, n);
    }
    write_pack<Unit, kBytes>(to, repack<E, kBytes>(sum), left);
  }
  template <int kBytes>
  using Sum = Values<E, kBytes>;

  template <class Block>
  __device__ void stage(const Block& b, uint64_t c, uint64_t at, const void* from, uint64_t count,
                        uint64_t element) const {
    if (!scales()) return b.stage(c, at, from, count * element);
    for_packs(count, [&](uint64_t offset, uint64_t left) {
      const Pack pack = read<kPackBytes>(static_cast<const unsigned char*>(from) + offset, left);
      write_pack<Unit, kPackBytes>(b.slot(c, at) + offset, scaled<kPackBytes>(pack), left);
    });
  }

  __device__ void reduce(void* dst, const void* const* sources, int n, uint64_t count) const {
    for_packs(count, [&](uint64_t offset, uint64_t left) {
      Values<E> sum;
      for (int r = 0; r < n; ++r) {
        const auto* const from = static_cast<const unsigned char*>(sources[r]) + offset;
        include<kPackBytes>(sum, read<kPackBytes>(from, left), r);
      }
      write<kPackBytes>(static_cast<unsigned char*>(dst) + offset, sum, n, left);
    });
  }

 private:
  // body(offset, bytes left) for each pack of `count` elements that is this thread's.
  template <class Body>
  __device__ static void for_packs(uint64_t count, Body body) {
    const uint64_t bytes = count * sizeof(typename E::Stored);
    for (uint64_t at = threadIdx.x * uint64_t{kPackBytes}; at < bytes;
         at += blockDim.x * uint64_t{kPackBytes}) {
      body(at, bytes - at);
    }
  }
};

}  // namespace dda::gpu
