// What the memory model and the clock of an AMD GPU offer, under the names of cuda.cuh. Compiled
// for gfx90a (`make check-hip`); it was never run.
//
// Memory that peers share must be fine-grained or uncached there: only then do system scope and the
// order of these operations hold between devices.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>

extern "C" __device__ int __ockl_wgred_and_i32(int);
extern "C" __device__ int __ockl_wgred_or_i32(int);

namespace dda::gpu {

// One access of a thread at full width.
struct alignas(16) Pack {
  uint32_t word[4];
};

template <class Word>
__device__ inline Word load_acquire(const Word* p) {
  return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <class Word>
__device__ inline Word load_relaxed(const Word* p) {
  return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ inline void store_relaxed(uint32_t* p, uint32_t v) {
  __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ inline void store_relaxed(uint64_t* p, uint64_t v) {
  __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Two halves of 8 bytes, each one access.
__device__ inline void store_halves(Pack* p, const Pack& v) {
  auto* const half = reinterpret_cast<uint64_t*>(p);
  store_relaxed(half, v.word[0] | static_cast<uint64_t>(v.word[1]) << 32);
  store_relaxed(half + 1, v.word[2] | static_cast<uint64_t>(v.word[3]) << 32);
}
__device__ inline Pack load_halves(const Pack* p) {
  const auto* const half = reinterpret_cast<const uint64_t*>(p);
  const uint64_t low = load_relaxed(half);
  const uint64_t high = load_relaxed(half + 1);
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
           static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}
// Each word of a pack is one access, or a part of one.
__device__ inline Pack load_relaxed(const Pack* p) { return load_halves(p); }
__device__ inline void store_relaxed(Pack* p, const Pack& v) { store_halves(p, v); }

// Orders all that this thread has written, or has seen written through a block barrier, before all
// that it writes next.
__device__ inline void fence_release() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

// Barriers of a block: whether all, or any, of its threads said true.
__device__ inline bool all_of_block(bool mine) { return __ockl_wgred_and_i32(mine) != 0; }
__device__ inline bool any_of_block(bool mine) { return __ockl_wgred_or_i32(mine) != 0; }

// Nanoseconds, the same for all blocks: a counter of 100 MHz.
__device__ inline uint64_t now_ns() { return __builtin_amdgcn_s_memrealtime() * 10; }

// There is no early launch.
__device__ inline void launch_early() {}

}  // namespace dda::gpu
