// What the memory model and the clock of an NVIDIA GPU offer, by name. hip.cuh has the same names.
//
// "relaxed" and "acquire" are at system scope: the other side may be another GPU or the host.
#pragma once

#include <cstdint>

namespace dda::gpu {

// One access of a thread at full width.
struct alignas(16) Pack {
  uint32_t word[4];
};

__device__ inline uint64_t load_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline uint32_t load_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ inline void store_relaxed(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Each word of a pack is one access; nothing is promised about all four.
__device__ inline Pack load_relaxed(const Pack* p) {
  Pack v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p)
               : "memory");
  return v;
}
__device__ inline void store_relaxed(Pack* p, const Pack& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
               "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
// Two halves of 8 bytes, each one access.
__device__ inline void store_halves(Pack* p, const Pack& v) {
  const uint64_t low = v.word[0] | static_cast<uint64_t>(v.word[1]) << 32;
  const uint64_t high = v.word[2] | static_cast<uint64_t>(v.word[3]) << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(low), "l"(high)
               : "memory");
}
__device__ inline Pack load_halves(const Pack* p) {
  uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(low), "=l"(high)
               : "l"(p)
               : "memory");
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
           static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}

// Orders all that this thread has written, or has seen written through a block barrier, before all
// that it writes next.
__device__ inline void fence_release() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Barriers of a block: whether all, or any, of its threads said true.
__device__ inline bool all_of_block(bool mine) { return __syncthreads_and(mine) != 0; }
__device__ inline bool any_of_block(bool mine) { return __syncthreads_or(mine) != 0; }

// Nanoseconds, the same for all blocks.
__device__ inline uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Waits until the kernel before in the stream has ended and what it wrote is visible, then lets the
// next one begin its launch. In this order no more than two kernels of a stream are on the GPU at a
// time; a longer row of them, all waiting, would keep out the kernels of other ranks or groups that
// the first one waits for. Without early launch both return at once.
__device__ inline void launch_early() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace dda::gpu
