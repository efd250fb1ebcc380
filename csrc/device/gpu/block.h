// The device interface on a GPU (see device/cpu.h for what each function promises): here all
// threads of a block do each step together.
//
// A rank's signals lie in its own memory and its peers write them, so that a wait polls nearby.
// Calls are told apart by steps that are counted on for ever in device memory: the host passes no
// counter, and a captured graph can be replayed. A chunk lies in the next slot of the block's ring;
// every call begins with a full exchange of signals, so a rank is at most one call ahead and three
// slots are enough.
//
// The high half of each signal has some bits of the call's signature. At the first step of a call
// they are compared, before anything is read or written.
#pragma once

#include "device/gpu/call.h"
#include "device/gpu/pack.h"

namespace dda {

// How a kernel waits, and how it gives up.
class GpuWatch {
 public:
  __device__ explicit GpuWatch(const GpuCall& call)
      : call_(call), stop_(reinterpret_cast<uint32_t*>(own() + call.layout.stop)) {}

  __device__ unsigned char* own() const { return call_.arena[call_.rank]; }

  // Polls until `ready()`; false if the group was revoked or the time is up. The time runs from
  // the first look around: most waits end before, and then ask no clock.
  template <class Ready>
  __device__ bool wait(int p, uint32_t step, Ready ready) {
    for (uint32_t polls = 1; !ready(); ++polls) {
      if (polls % kPollsPerLook != 0) continue;
      if (gpu::load_relaxed(stop_) != 0) return false;
      if (gpu::load_relaxed(&call_.words->abort) != 0) {
        gpu::store_relaxed(stop_, 1);
        return false;
      }
      const uint64_t budget =
          call_.budget_ns != 0 ? call_.budget_ns : gpu::load_relaxed(&call_.words->budget_ns);
      if (start_ == 0) start_ = gpu::now_ns();
      if (gpu::now_ns() - start_ > budget) {
        fail(GpuFailure::kTimeout, p, step, call_.signature, 0);
        return false;
      }
    }
    return true;
  }

  // Revokes the group for this rank; the host tells the peers. The first reason stays.
  __device__ void fail(GpuFailure::Kind kind, int p, uint32_t step, uint64_t mine,
                       uint64_t theirs) {
    if (atomicExch(stop_, 1u) != 0) return;
    volatile GpuFailure* const f = &call_.words->failure;
    f->peer = p;
    f->step = step;
    f->block = blockIdx.x;
    f->mine = mine;
    f->theirs = theirs;
    __threadfence_system();
    f->kind = kind;
    __threadfence_system();
  }

 private:
  static constexpr uint32_t kPollsPerLook = 256;
  const GpuCall& call_;
  uint64_t start_ = 0;
  uint32_t* const stop_;
};

class GpuBlock {
 public:
  using Sources = const void* [kMaxGpuRanks];

  __device__ explicit GpuBlock(const GpuCall& call)
      : call_(call),
        watch_(call),
        state_(reinterpret_cast<BlockState*>(watch_.own() + call.layout.states)[blockIdx.x]),
        base_(state_.steps),
        first_slot_(state_.ring_slot),
        turn_(state_.entries & 1) {}

  // Whether the call may run; leaves its signature where a peer that differs can read it.
  __device__ bool begin() {
    if (gpu::any_of_block(state_.busy != 0)) {
      if (threadIdx.x == 0) watch_.fail(GpuFailure::kBusy, rank(), 0, 0, 0);
      return false;
    }
    if (threadIdx.x == 0) {
      state_.busy = 1;
      signals(rank()).signature = call_.signature;
    }
    return true;
  }
  __device__ void end(uint64_t chunks) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    state_.steps = base_ + step_;
    state_.ring_slot = static_cast<uint32_t>((first_slot_ + chunks) % slots());
    if (entered_) ++state_.entries;
    state_.busy = 0;
  }

  __device__ int rank() const { return call_.rank; }
  __device__ int size() const { return call_.layout.size; }
  __device__ int index() const { return blockIdx.x; }
  __device__ uint32_t first() const { return entered_ ? 2 : 1; }
  __device__ int neighbour(int i) const { return (rank() + i) % size(); }
  __device__ uint32_t slots() const { return call_.layout.slots; }

  __device__ unsigned char* slot(uint64_t c, uint64_t at) const { return in_ring(rank(), c) + at; }
  // What this rank stages is read where it is, if that is where its peers look.
  __device__ void stage(uint64_t c, uint64_t at, const void* from, uint64_t bytes) const {
    if (is_direct(rank())) return;
    gpu::copy_bytes(slot(c, at), from, bytes);
  }
  __device__ const unsigned char* staged(int p, uint64_t c, uint64_t at, uint64_t offset) const {
    return is_direct(p) ? resolve(p, signals(rank()).in[turn_][p]) + offset : in_ring(p, c) + at;
  }
  __device__ unsigned char* result(int p) const {
    return call_.arena[p] + call_.layout.result_at(index());
  }
  __device__ bool all_outputs_shared() const { return shared_out_ == everybody(); }
  __device__ unsigned char* output(int p, uint64_t offset) const {
    return resolve(p, signals(rank()).out[turn_][p]) + offset;
  }

  // Begins a call in which tensors may be symmetric: the ranks tell each other where theirs lie.
  // False: stop.
  __device__ bool enter() {
    if (threadIdx.x < size()) {
      signals(threadIdx.x).in[turn_][rank()] = call_.in_place;
      signals(threadIdx.x).out[turn_][rank()] = call_.out_place;
    }
    publish();
    entered_ = true;
    if (!wait_all()) return false;
    const uint64_t* const in = signals(rank()).in[turn_];
    const uint64_t* const out = signals(rank()).out[turn_];
    uint32_t shared_in = 0, in_place = 0;
    for (int p = 0; p < size(); ++p) {
      shared_in |= static_cast<uint32_t>(in[p] != 0) << p;
      shared_out_ |= static_cast<uint32_t>(out[p] != 0) << p;
      in_place |= static_cast<uint32_t>(in[p] != 0 && in[p] == out[p]) << p;
    }
    any_shared_ = (shared_in | shared_out_) != 0;
    writes_ = shared_in == everybody() && shared_out_ == everybody();
    // One hop in place would overwrite what peers still read; a tree writes a slice only after its
    // reader is done with it.
    const bool is_tree = writes_ || call_.algorithm == Algorithm::kTree;
    direct_ = is_tree ? shared_in : shared_in & ~in_place;
    return true;
  }
  // Whether an all_reduce reads every input and writes every output where they lie.
  __device__ bool writes_outputs() const { return writes_; }
  // Whether nothing of this call passes through slots: `root` reads or is read by all, -1 is for
  // everybody.
  __device__ bool is_all_direct(int root) const {
    return root < 0 ? direct_ == everybody() : is_direct(root);
  }
  // The counterpart of enter(): nobody goes on while its tensor is still in use.
  __device__ bool leave() {
    if (!any_shared_) return true;
    publish();
    return wait_all();
  }

  __device__ void publish() {
    __syncthreads();
    ++step_;
    const int p = threadIdx.x;
    if (p >= size() || p == rank()) return;
    gpu::fence_release();
    gpu::store_relaxed(&signals(p).from[rank()], tag() << 32 | (base_ + step_));
  }
  __device__ bool wait(int p, uint32_t step) {
    return gpu::all_of_block(threadIdx.x != 0 || await(p, base_ + step));
  }
  __device__ bool wait_all() { return wait_all(step_); }
  __device__ bool wait_all(uint32_t step) {
    const int p = threadIdx.x;
    return gpu::all_of_block(p >= size() || p == rank() || await(p, base_ + step));
  }

  __device__ void copy(void* dst, const void* src, uint64_t bytes) const {
    if (dst != src && bytes != 0) gpu::copy_bytes(dst, src, bytes);
  }
  __device__ void deliver(void* dst, const void* src, uint64_t bytes) const {
    copy(dst, src, bytes);
  }

  __device__ bool fetch(void* to, int p, uint64_t c, uint64_t at, uint64_t offset,
                        uint64_t bytes) const {
    deliver(to, staged(p, c, at, offset), bytes);
    return true;
  }

  // The longest part of all ranks, where each knows its own only, after a look at every pair that
  // concerns this rank; UINT64_MAX if a pair does not agree. One publication.
  __device__ uint64_t agree_on_longest(uint64_t longest, const Parts& in, const Parts& out) {
    BlockSignals& mine = signals(rank());
    if (threadIdx.x < size()) mine.row[threadIdx.x] = in.count_of(threadIdx.x);
    if (threadIdx.x == 0) mine.longest = longest;
    publish();
    if (!wait_all()) return UINT64_MAX;
    bool agree = true;
    for (int p = 0; p < size(); ++p) {
      const uint64_t theirs = signals(p).longest;
      longest = theirs > longest ? theirs : longest;
      const int64_t sent = signals(p).row[rank()];
      const auto expected = static_cast<int64_t>(out.count_of(p));
      if (sent == expected) continue;
      agree = false;
      if (threadIdx.x == 0) watch_.fail(GpuFailure::kRows, p, 0, expected, sent);
    }
    return agree ? longest : UINT64_MAX;
  }

 private:
  __device__ BlockSignals& signals(int p) const {
    return reinterpret_cast<BlockSignals*>(call_.arena[p] + call_.layout.signals)[blockIdx.x];
  }
  __device__ unsigned char* in_ring(int p, uint64_t c) const {
    return call_.arena[p] +
           call_.layout.slot_at(index(), static_cast<uint32_t>((first_slot_ + c) % slots()));
  }
  __device__ uint32_t everybody() const { return (1u << size()) - 1; }
  __device__ bool is_direct(int p) const { return (direct_ >> p & 1) != 0; }
  __device__ unsigned char* resolve(int p, uint64_t place) const {
    const uint64_t row = call_.layout.segment_at(GpuPlace::segment(place));
    auto* const* const bases = reinterpret_cast<unsigned char* const*>(watch_.own() + row);
    return bases[p] + GpuPlace::offset(place);
  }
  // Some bits of the signature, in which every field has a say.
  __device__ uint64_t tag() const { return (call_.signature ^ call_.signature >> 31) & 0xffffffff; }

  __device__ bool await(int p, uint32_t target) {
    uint64_t word = 0;
    const bool there = watch_.wait(p, target - base_, [&] {
      word = gpu::load_acquire(&signals(rank()).from[p]);
      return static_cast<int32_t>(static_cast<uint32_t>(word) - target) >= 0;
    });
    if (!there) return false;
    // Of two ranks that differ, the first to see the other's word sees it at the first step.
    const bool is_first = target == base_ + 1 && static_cast<uint32_t>(word) == target;
    if (!is_first || word >> 32 == tag()) return true;
    watch_.fail(GpuFailure::kMismatch, p, 1, call_.signature, signals(p).signature);
    return false;
  }

  const GpuCall& call_;
  GpuWatch watch_;
  BlockState& state_;
  const uint32_t base_;
  const uint32_t first_slot_;
  const uint32_t turn_;
  uint32_t step_ = 0;
  bool entered_ = false, any_shared_ = false, writes_ = false;
  uint32_t direct_ = 0, shared_out_ = 0;  // a bit a rank: its input is read, its output written
};

}  // namespace dda
