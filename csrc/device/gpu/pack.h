// How the threads of a block read, write and copy memory of any alignment.
#pragma once

#if defined(__HIPCC__)
#include "device/gpu/hip.cuh"
#else
#include "device/gpu/cuda.cuh"
#endif

namespace dda::gpu {

// `kBytes` bytes at `from`, of which `left` are there; in one access where that is possible.
template <class Unit, int kBytes>
__device__ inline Pack read_pack(const void* from, uint64_t left) {
  Pack pack = {};
  if (left >= kBytes && reinterpret_cast<uintptr_t>(from) % kBytes == 0) {
    if constexpr (kBytes == kPackBytes) {
      const uint4 v = *static_cast<const uint4*>(from);
      pack = {{v.x, v.y, v.z, v.w}};
    } else {
      const uint2 v = *static_cast<const uint2*>(from);
      pack = {{v.x, v.y, 0, 0}};
    }
  } else {
    Unit units[kPackBytes / sizeof(Unit)] = {};
#pragma unroll
    for (int k = 0; k < kBytes / static_cast<int>(sizeof(Unit)); ++k) {
      if (k * sizeof(Unit) < left) units[k] = static_cast<const Unit*>(from)[k];
    }
    memcpy(&pack, units, sizeof(pack));
  }
  return pack;
}
template <class Unit, int kBytes>
__device__ inline void write_pack(void* to, const Pack& pack, uint64_t left) {
  if (left >= kBytes && reinterpret_cast<uintptr_t>(to) % kBytes == 0) {
    if constexpr (kBytes == kPackBytes) {
      *static_cast<uint4*>(to) = {pack.word[0], pack.word[1], pack.word[2], pack.word[3]};
    } else {
      *static_cast<uint2*>(to) = {pack.word[0], pack.word[1]};
    }
  } else {
    Unit units[kPackBytes / sizeof(Unit)];
    memcpy(units, &pack, sizeof(pack));
#pragma unroll
    for (int k = 0; k < kBytes / static_cast<int>(sizeof(Unit)); ++k) {
      if (k * sizeof(Unit) < left) static_cast<Unit*>(to)[k] = units[k];
    }
  }
}

// `bytes` bytes by all threads of the block, in the widest units that both pointers allow.
template <class Unit>
__device__ inline void copy_units(void* dst, const void* src, uint64_t bytes) {
  constexpr int kUnroll = 4;  // loads in flight
  const uint64_t count = bytes / sizeof(Unit);
  const uint64_t step = blockDim.x;
  auto* const to = static_cast<Unit*>(dst);
  const auto* const from = static_cast<const Unit*>(src);
  for (uint64_t i = threadIdx.x; i < count; i += kUnroll * step) {
    Unit v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < count) v[u] = from[i + u * step];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < count) to[i + u * step] = v[u];
    }
  }
  const uint64_t done = count * sizeof(Unit);
  if (threadIdx.x < bytes - done) {
    static_cast<unsigned char*>(dst)[done + threadIdx.x] =
        static_cast<const unsigned char*>(src)[done + threadIdx.x];
  }
}
__device__ inline void copy_bytes(void* dst, const void* src, uint64_t bytes) {
  const auto mix = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src);
  if (mix % 16 == 0) return copy_units<uint4>(dst, src, bytes);
  if (mix % 4 == 0) return copy_units<uint32_t>(dst, src, bytes);
  if (mix % 2 == 0) return copy_units<uint16_t>(dst, src, bytes);
  copy_units<unsigned char>(dst, src, bytes);
}

}  // namespace dda::gpu
