#include "memory/gpu_arena.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

namespace dda {
namespace {

// What is left of arenas that nobody on this rank uses.
struct Grave {
  int device;
  int rank;
  std::vector<unsigned char*> bases;  // a peer's goes first
  GpuHostWords* words;
  Neighbours neighbours;
  uint64_t record_at;

  GpuRecord& record(int p) const {
    return *reinterpret_cast<GpuRecord*>((*neighbours)[p].segment.data() + record_at);
  }
  bool has_let_go(size_t p) const {
    return record(static_cast<int>(p)).unmapped.load(std::memory_order_acquire) != 0 ||
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
  grave.record(grave.rank).unmapped.store(1, std::memory_order_release);
  for (size_t p = 0; p < grave.bases.size(); ++p) {
    all_let_go &= static_cast<int>(p) == grave.rank || grave.has_let_go(p);
  }
  if (!all_let_go) return false;
  cudaFree(grave.bases[grave.rank]);
  cudaFreeHost(grave.words);
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

GpuArenas::GpuArenas(int device, int rank, const GpuLayout& layout, Neighbours neighbours,
                     uint64_t record_at, uint32_t calls_before)
    : rank_(rank),
      device_(device),
      layout_(layout),
      record_at_(record_at),
      neighbours_(std::move(neighbours)),
      bases_(layout.size, nullptr) {
  const GpuScope scope(device_);
  void* memory = nullptr;
  check_gpu(cudaMalloc(&memory, layout_.total), "no room for a group's arena on the GPU");
  bases_[rank_] = static_cast<unsigned char*>(memory);
  void* words = nullptr;
  check_gpu(cudaHostAlloc(&words, sizeof(GpuHostWords), cudaHostAllocPortable),
            "no pinned memory for a group");
  std::memset(words, 0, sizeof(GpuHostWords));
  words_ = static_cast<GpuHostWords*>(words);
  begin(calls_before);
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(GpuRecord::handle), "a handle is 64 bytes");
  check_gpu(cudaIpcGetMemHandle(&handle, memory), "this GPU's memory cannot be shared (IPC)");
  std::memcpy(record(rank_).handle, &handle, sizeof(handle));
}

GpuArenas::~GpuArenas() {
  // No call of CUDA here: a graph's destructor may have called.
  const std::lock_guard<std::mutex> lock(graveyard().mutex);
  graveyard().graves.push_back(
      {device_, rank_, std::move(bases_), words_, std::move(neighbours_), record_at_});
}

void GpuArenas::begin(uint32_t calls_before) {
  const auto set = [&](uint64_t from, uint64_t to, int byte) {
    check_gpu(cudaMemset(bases_[rank_] + from, byte, to - from), "cannot clear an arena");
  };
  set(0, layout_.total, 0);
  set(layout_.push, layout_.packets, 0xff);  // what no sender sends
  set(layout_.packets, layout_.ring, 0x55);  // a flag that is 2^31 calls away
  std::vector<BlockState> states(layout_.blocks);
  std::vector<BlockSignals> signals(layout_.blocks);
  for (BlockState& s : states) s.steps = s.pushes = s.packet_calls = calls_before;
  for (BlockSignals& s : signals) std::fill(s.from, s.from + kMaxGpuRanks, calls_before);
  const auto put = [&](uint64_t at, const auto& all) {
    check_gpu(cudaMemcpy(bases_[rank_] + at, all.data(), all.size() * sizeof(all[0]),
                         cudaMemcpyHostToDevice),
              "cannot fill an arena");
  };
  put(layout_.states, states);
  put(layout_.signals, signals);
  check_gpu(cudaDeviceSynchronize(), "cannot fill an arena");
}

void GpuArenas::open(uint64_t nonce) {
  const GpuScope scope(device_);
  for (int p = 0; p < layout_.size; ++p) {
    const uint64_t word = nonce + rank_ + 1;
    if (p != rank_) {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, record(p).handle, sizeof(handle));
      void* memory = nullptr;
      const cudaError_t status =
          cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) {
        cudaGetLastError();
        throw Error(Error::Kind::kSystem,
                    "rank " + std::to_string(rank_) + " cannot map the GPU memory of rank " +
                        std::to_string(p) + ": " + cudaGetErrorString(status),
                    p);
      }
      bases_[p] = static_cast<unsigned char*>(memory);
    }
    unsigned char* const to = bases_[p] + layout_.proof + rank_ * sizeof(word);
    check_gpu(cudaMemcpy(to, &word, sizeof(word), cudaMemcpyHostToDevice),
              "cannot write to a peer's arena");
  }
  check_gpu(cudaDeviceSynchronize(), "cannot write to a peer's arena");
}

void GpuArenas::prove(uint64_t nonce) {
  const GpuScope scope(device_);
  const auto expect = [&](int owner, int writer) {
    uint64_t word = 0;
    const unsigned char* const from = bases_[owner] + layout_.proof + writer * sizeof(word);
    check_gpu(cudaMemcpy(&word, from, sizeof(word), cudaMemcpyDeviceToHost),
              "cannot read a peer's arena");
    if (word == nonce + writer + 1) return;
    throw Error(Error::Kind::kSystem,
                "what rank " + std::to_string(writer) + " wrote to the GPU memory of rank " +
                    std::to_string(owner) + " was not found there by rank " + std::to_string(rank_),
                owner == rank_ ? writer : owner);
  };
  for (int p = 0; p < layout_.size; ++p) {
    expect(rank_, p);
    expect(p, rank_);
  }
}

void GpuArenas::sweep() {
  const std::lock_guard<std::mutex> lock(graveyard().mutex);
  std::vector<Grave>& graves = graveyard().graves;
  for (size_t i = graves.size(); i-- > 0;) {
    if (dig(graves[i])) graves.erase(graves.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace dda
