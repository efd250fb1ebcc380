#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "core/env.h"
#include "engine/create.h"
#include "engine/gpu_group.h"

namespace dda {
namespace {

constexpr uint64_t kSlotBytes = 32 << 10;
// Early launch holds two kernels of a stream at a time.
constexpr int kKernelsAtATime = 2;

// A kernel is loaded when it is first asked for, which may wait for all that runs on the GPU: done
// in a call, for a kernel that waits for this very call.
void load_kernels() {
  const auto load = [](const void* kernel) {
    cudaFuncAttributes attributes;
    if (kernel == nullptr) return;
    check_gpu(cudaFuncGetAttributes(&attributes, kernel), "dda has no kernels for this GPU");
  };
  for (const bool pushes : {false, true}) load(gpu_move_kernel(pushes));
  load(gpu_message_kernel());
  for (int d = 0; d < kNumDTypes; ++d) {
    const GpuKernels& kernels = gpu_kernels(static_cast<DType>(d));
    for (const int which : {0, 1}) {
      load(kernels.reduce[which]);
      load(kernels.push[which]);
    }
  }
}

// How many blocks of dda's kernels this GPU holds.
int resident_blocks(int device) {
  int units = 0;
  check_gpu(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device),
            "cannot ask a GPU for its size");
  return units * kGpuBlocksPerUnit;
}

}  // namespace

std::shared_ptr<GpuGroup> GpuGroup::create(Bootstrap& store, const GroupOptions& options,
                                           int device) {
  GpuArenas::sweep();
  if (options.size > kMaxGpuRanks) {
    throw Error(Error::Kind::kSystem,
                "a group on GPUs has up to " + std::to_string(kMaxGpuRanks) + " ranks", 0);
  }
  Exchange exchange(store, options.rank, options.size, options.timeout, fingerprint() + " gpu");
  const Layout host_layout(options.size, 1, options.size * kLineBytes, 4, 8 << 10);
  const uint64_t record_at = round_up(host_layout.total, kLineBytes);
  std::vector<Neighbour> neighbours = exchange.trade(
      record_at + sizeof(GpuRecord),
      [&] {
        Segment mine = Segment::create(record_at + sizeof(GpuRecord), "dda-gpu");
        prepare_arena(mine.data(), host_layout, options, exchange.nonce());
        auto& record = *reinterpret_cast<GpuRecord*>(mine.data() + record_at);
        cudaDeviceProp properties;
        check_gpu(cudaGetDeviceProperties(&properties, device), "cannot ask a GPU what it is");
        std::memcpy(record.device, &properties.uuid, sizeof(record.device));
        record.resident = resident_blocks(device);
        return mine;
      },
      [&](const std::vector<Neighbour>& all) { verify_arenas(all, options, exchange.nonce()); });

  const auto record = [&](int p) -> const GpuRecord& {
    return *reinterpret_cast<const GpuRecord*>(neighbours[p].segment.data() + record_at);
  };
  int blocks = kMaxGpuBlocks;
  for (int p = 0; p < options.size; ++p) {
    int beside = 0;
    for (int q = 0; q < options.size; ++q) {
      beside += std::memcmp(record(p).device, record(q).device, sizeof(record(p).device)) == 0;
    }
    blocks = std::min(blocks, record(p).resident / beside / kKernelsAtATime);
  }
  const GpuLayout layout(options.size, std::max(blocks, 1), kSlotBytes);

  std::shared_ptr<GpuArenas> arenas;
  const uint64_t nonce = exchange.nonce()[0];
  exchange.attempt([&] {
    const GpuScope scope(device);
    load_kernels();
    arenas = std::make_shared<GpuArenas>(
        device, options.rank, layout,
        std::make_shared<const std::vector<Neighbour>>(std::move(neighbours)), record_at,
        options.calls_before);
  });
  exchange.attempt([&] { arenas->open(nonce); });
  exchange.attempt([&] { arenas->prove(nonce); });
  return std::make_shared<GpuGroup>(options, device, host_layout, layout, std::move(arenas));
}

}  // namespace dda
