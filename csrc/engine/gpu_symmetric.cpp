#include <cuda_runtime.h>

#include "core/collective.h"
#include "engine/gpu_group.h"

// The part of GpuGroup that deals with symmetric tensors.

namespace dda {

// Says where the peers may read this rank's input, and write its output. All ranks exchange that,
// or none: whether a heap is used is equal on all.
void GpuGroup::offer_symmetric(const Call& call, GpuCall& parameters) const {
  const uint64_t bytes = call.count * size_of(call.dtype);
  const bool scales = reduces(call.collective) && call.reduce == ReduceOp::kPremulSum;
  const bool has_counts = call.in_counts != nullptr || call.out_counts != nullptr;
  const uint64_t parts = call.collective == Collective::kReduceScatter ? size_ : 1;
  switch (call.collective) {
    case Collective::kAllReduce:
      parameters.out_place = heap_.place_of(call.out, bytes);
      [[fallthrough]];
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kAllGather:
      parameters.exchanges = true;
      if (scales || call.in_parts != nullptr || (parts > 1 && has_counts)) break;
      parameters.in_place = heap_.place_of(call.in, parts * bytes);
      break;
    default:
      break;
  }
}

std::unique_ptr<GpuTensor> GpuGroup::allocate(Bootstrap& store, uint64_t bytes) {
  check_usable("empty");
  const std::string terms = "symmetric on GPUs, " + std::to_string(bytes) + " bytes";
  Exchange exchange(store, rank_, size_, timeout_, terms, 0, [&] { return watch_.is_whole(); });
  auto neighbours = std::make_shared<const std::vector<Neighbour>>(exchange.trade(
      sizeof(GpuHandle), [&] { return Segment::create(sizeof(GpuHandle), "dda-gpu-symmetric"); },
      [](const std::vector<Neighbour>&) {}));
  const uint64_t nonce = exchange.nonce()[0];
  std::shared_ptr<GpuShared> segment;
  uint64_t number = 0;
  exchange.attempt([&] {
    const GpuScope scope(device_);
    // What is freed now, kernels may still be using.
    check_gpu(cudaDeviceSynchronize(), "cannot wait for the GPU");
    heap_.collect(size_);
    GpuArenas::sweep();
    number = heap_.next();
    segment = std::make_shared<GpuShared>(device_, rank_, bytes, std::move(neighbours), 0);
  });
  segment->handle(rank_).number = number;
  exchange.attempt([&] { segment->open(nonce); });
  exchange.attempt([&] {
    segment->prove(nonce);
    for (int p = 0; p < size_; ++p) {
      if (segment->handle(p).number == number) continue;
      // A rank has seen that a tensor was freed before another did; at the next attempt both have.
      throw Error(Error::Kind::kMemory,
                  "rank " + std::to_string(p) +
                      " has another number of free "
                      "places for symmetric tensors; try again",
                  p);
    }
    const GpuScope scope(device_);
    std::vector<unsigned char*> bases;
    for (int p = 0; p < size_; ++p) bases.push_back(segment->base(p));
    unsigned char* const row = arenas_->base(rank_) + layout_.segment_at(number);
    check_gpu(
        cudaMemcpy(row, bases.data(), bases.size() * sizeof(bases[0]), cudaMemcpyHostToDevice),
        "cannot write down where symmetric memory lies");
  });
  heap_.add(number, segment);
  return std::make_unique<GpuTensor>(std::move(segment), rank_);
}

}  // namespace dda
