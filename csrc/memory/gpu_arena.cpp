#include "memory/gpu_arena.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>

namespace dda {
namespace {

constexpr uint64_t kProofBytes = kMaxGpuRanks * sizeof(uint64_t);  // behind the block

// What is left of a block that nobody on this rank uses.
struct Grave {
  int device;
  int rank;
  std::vector<unsigned char*> bases;  // a peer's goes first
  void* pinned;
  Neighbours neighbours;
  uint64_t handle_at;

  GpuHandle& handle(size_t p) const {
    return *reinterpret_cast<GpuHandle*>((*neighbours)[p].segment.data() + handle_at);
  }
  bool has_let_go(size_t p) const {
    return handle(p).unmapped.load(std::memory_order_acquire) != 0 ||
           !(*neighbours)[p].life->is_alive();
  }
};

// Never destroyed: what is left at the end of the process ends with it.
struct Graveyard {
  std::mutex mutex;
  std::vector<Grave> graves;
};
Graveyard& graveyard() {
  static auto* const it = new Graveyard;
  return *it;
}

// Whether nothing of the grave is left.
bool dig(Grave& grave) {
  const GpuScope scope(grave.device);
  bool all_let_go = true;
  for (size_t p = 0; p < grave.bases.size(); ++p) {
    if (static_cast<int>(p) == grave.rank) continue;
    if (grave.bases[p] != nullptr) cudaIpcCloseMemHandle(grave.bases[p]);
    grave.bases[p] = nullptr;
  }
  grave.handle(grave.rank).unmapped.store(1, std::memory_order_release);
  for (size_t p = 0; p < grave.bases.size(); ++p) {
    all_let_go &= static_cast<int>(p) == grave.rank || grave.has_let_go(p);
  }
  if (!all_let_go) return false;
  cudaFree(grave.bases[grave.rank]);
  if (grave.pinned != nullptr) cudaFreeHost(grave.pinned);
  cudaGetLastError();  // a context that is gone has freed them already
  return true;
}

}  // namespace

void check_gpu(int status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is told here, and not again
  const auto error = static_cast<cudaError_t>(status);
  const bool memory = error == cudaErrorMemoryAllocation;
  throw Error(
      memory ? Error::Kind::kMemory : Error::Kind::kSystem,
      std::string(what) + ": " + cudaGetErrorString(error) + (memory ? "; free GPU memory" : ""));
}

GpuScope::GpuScope(int device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  mode_ = mode;
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current == device) return;
  before_ = current;
  cudaSetDevice(device);
}

GpuScope::~GpuScope() {
  if (before_ >= 0) cudaSetDevice(before_);
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

GpuShared::GpuShared(int device, int rank, uint64_t bytes, Neighbours neighbours,
                     uint64_t handle_at)
    : device_(device),
      rank_(rank),
      bytes_(round_up(bytes, 256)),
      handle_at_(handle_at),
      neighbours_(std::move(neighbours)),
      bases_(neighbours_->size(), nullptr) {
  const GpuScope scope(device_);
  void* memory = nullptr;
  check_gpu(cudaMalloc(&memory, bytes_ + kProofBytes), "no room for shared memory on the GPU");
  bases_[rank_] = static_cast<unsigned char*>(memory);
  check_gpu(cudaMemset(memory, 0, bytes_ + kProofBytes), "cannot clear shared memory");
  check_gpu(cudaDeviceSynchronize(), "cannot clear shared memory");
  cudaIpcMemHandle_t ipc;
  static_assert(sizeof(ipc) == sizeof(GpuHandle::ipc), "a handle is 64 bytes");
  check_gpu(cudaIpcGetMemHandle(&ipc, memory), "this GPU's memory cannot be shared (IPC)");
  std::memcpy(handle(rank_).ipc, &ipc, sizeof(ipc));
}

GpuShared::~GpuShared() {
  // No call of CUDA here: a graph's destructor may have called.
  const std::lock_guard<std::mutex> lock(graveyard().mutex);
  graveyard().graves.push_back(
      {device_, rank_, std::move(bases_), pinned_, std::move(neighbours_), handle_at_});
}

void GpuShared::open(uint64_t nonce) {
  const GpuScope scope(device_);
  for (int p = 0; p < static_cast<int>(bases_.size()); ++p) {
    const uint64_t word = nonce + rank_ + 1;
    if (p != rank_) {
      cudaIpcMemHandle_t ipc;
      std::memcpy(&ipc, handle(p).ipc, sizeof(ipc));
      void* memory = nullptr;
      const cudaError_t status = cudaIpcOpenMemHandle(&memory, ipc, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) {
        cudaGetLastError();
        throw Error(Error::Kind::kSystem,
                    "rank " + std::to_string(rank_) + " cannot map the GPU memory of rank " +
                        std::to_string(p) + ": " + cudaGetErrorString(status),
                    p);
      }
      bases_[p] = static_cast<unsigned char*>(memory);
    }
    unsigned char* const to = bases_[p] + bytes_ + rank_ * sizeof(word);
    check_gpu(cudaMemcpy(to, &word, sizeof(word), cudaMemcpyHostToDevice),
              "cannot write to a peer's arena");
  }
  check_gpu(cudaDeviceSynchronize(), "cannot write to a peer's arena");
}

void GpuShared::prove(uint64_t nonce) {
  const GpuScope scope(device_);
  const auto expect = [&](int owner, int writer) {
    uint64_t word = 0;
    const unsigned char* const from = bases_[owner] + bytes_ + writer * sizeof(word);
    check_gpu(cudaMemcpy(&word, from, sizeof(word), cudaMemcpyDeviceToHost),
              "cannot read a peer's arena");
    if (word == nonce + writer + 1) return;
    throw Error(Error::Kind::kSystem,
                "what rank " + std::to_string(writer) + " wrote to the GPU memory of rank " +
                    std::to_string(owner) + " was not found there by rank " + std::to_string(rank_),
                owner == rank_ ? writer : owner);
  };
  for (int p = 0; p < static_cast<int>(bases_.size()); ++p) {
    expect(rank_, p);
    expect(p, rank_);
  }
}

void GpuShared::sweep() {
  const std::lock_guard<std::mutex> lock(graveyard().mutex);
  std::vector<Grave>& graves = graveyard().graves;
  for (size_t i = graves.size(); i-- > 0;) {
    if (dig(graves[i])) graves.erase(graves.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

GpuArenas::GpuArenas(int device, int rank, const GpuLayout& layout, Neighbours neighbours,
                     uint64_t record_at, uint32_t calls_before)
    : GpuShared(device, rank, layout.total, std::move(neighbours),
                record_at + offsetof(GpuRecord, handle)),
      record_at_(record_at) {
  const GpuScope scope(device);
  check_gpu(cudaHostAlloc(&pinned_, sizeof(GpuHostWords), cudaHostAllocPortable),
            "no pinned memory for a group");
  std::memset(pinned_, 0, sizeof(GpuHostWords));

  const auto set = [&](uint64_t from, uint64_t to, int byte) {
    check_gpu(cudaMemset(base() + from, byte, to - from), "cannot clear an arena");
  };
  set(layout.push, layout.packets, 0xff);  // what no sender sends
  set(layout.packets, layout.ring, 0x55);  // a flag that is 2^31 calls away
  std::vector<BlockState> states(layout.blocks);
  std::vector<BlockSignals> signals(layout.blocks);
  for (BlockState& s : states) s.steps = s.pushes = s.packet_calls = calls_before;
  for (BlockSignals& s : signals) std::fill(s.from, s.from + kMaxGpuRanks, calls_before);
  const auto put = [&](uint64_t at, const auto& all) {
    check_gpu(
        cudaMemcpy(base() + at, all.data(), all.size() * sizeof(all[0]), cudaMemcpyHostToDevice),
        "cannot fill an arena");
  };
  put(layout.states, states);
  put(layout.signals, signals);
  check_gpu(cudaDeviceSynchronize(), "cannot fill an arena");
}

}  // namespace dda
