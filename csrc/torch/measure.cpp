#include "torch/measure.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/collective.h"
#include "core/partition.h"

namespace dda {
namespace {

// A zeroed buffer, which is so in memory before the first iteration.
std::shared_ptr<void> make_buffer(Group& group, uint64_t bytes, bool symmetric) {
  const size_t room = std::max<size_t>(bytes, 1);
  if (symmetric) {
    const std::shared_ptr<SymmetricMemory> memory = group.allocate(room);
    return {data_of(*memory), [memory](void*) {}};
  }
  void* const memory = std::aligned_alloc(kPageBytes, round_up(room, kPageBytes));
  if (memory == nullptr) {
    throw Error(Error::Kind::kMemory, "no room for a buffer of " + std::to_string(bytes) +
                                          " bytes; measure a smaller size");
  }
  std::fill_n(static_cast<unsigned char*>(memory), room, 0);
  return {memory, std::free};
}

}  // namespace

std::vector<double> measure(Group& group, const Measurement& what) {
  if (what.iterations < 1) {
    throw Error(Error::Kind::kInvalid, "a measurement needs at least one iteration");
  }
  const uint64_t elements = what.bytes / size_of(what.dtype);
  Call call;
  call.collective = what.collective;
  call.dtype = what.dtype;
  call.algorithm = what.algorithm;
  const bool is_whole = is_input_whole(what.collective) && is_output_whole(what.collective);
  call.count = is_whole ? elements : elements / group.size();
  const auto in = make_buffer(group, what.bytes, what.symmetric);
  const auto out = make_buffer(group, what.bytes, what.symmetric);
  call.in = in.get();
  call.out = out.get();
  std::vector<double> microseconds(what.iterations);
  group.time(call, what.iterations, microseconds.data());
  return microseconds;
}

}  // namespace dda
