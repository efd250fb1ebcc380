#include "engine/gpu_choose.h"

#include <algorithm>
#include <string>

#include "core/collective.h"
#include "core/partition.h"
#include "device/gpu/kernels.h"

namespace dda {
namespace {

// A block of a push begins with so many packs, one a thread; it takes more when all blocks are
// used.
constexpr uint64_t kPushThreads = 128;
// A block of a staged call is worth its signals when it has so much to move.
constexpr uint64_t kBlockBytes = 16 << 10;
// With more than two ranks a tree reads less; below this the second hop costs more.
constexpr uint64_t kFlatBytes = 64 << 10;

int whole_warps(uint64_t threads) {
  return static_cast<int>(std::clamp<uint64_t>(round_up(threads, 32), 32, kGpuThreads));
}

// Whether all blocks together have room for the packs of one part.
bool fits_push(uint64_t bytes, int payload, const GpuLayout& layout, GpuPlan* plan) {
  const uint64_t packs = (bytes + payload - 1) / payload;
  plan->blocks = static_cast<int>(std::clamp<uint64_t>((packs + kPushThreads - 1) / kPushThreads, 1,
                                                       static_cast<uint64_t>(layout.blocks)));
  const uint64_t of_block = part_of({0, bytes}, 0, plan->blocks, 1).count;
  const uint64_t packs_of_block = (of_block + payload - 1) / payload;
  plan->threads = whole_warps(packs_of_block);
  return packs_of_block * kPackBytes <= layout.push_bytes;
}

}  // namespace

GpuPlan choose_gpu(Collective collective, Algorithm asked, uint64_t longest, uint64_t element,
                   int payload, bool uneven, const GpuLayout& layout) {
  GpuPlan plan;
  const uint64_t bytes = longest * element;
  if (!uneven && asked != Algorithm::kTree && fits_push(bytes, payload, layout, &plan)) {
    plan.pushes = true;
    plan.chunk = std::max<uint64_t>(1, longest);
    return plan;
  }
  const bool is_flat = !has_tree(collective) || layout.size == 2 || bytes <= kFlatBytes;
  plan.algorithm = asked != Algorithm::kAuto ? asked
                   : is_flat                 ? Algorithm::kFlat
                                             : Algorithm::kTree;
  const auto all = static_cast<uint64_t>(layout.blocks);
  // Of uneven all_to_alls no rank knows the longest part.
  const uint64_t wanted = uneven ? all : (bytes + kBlockBytes - 1) / kBlockBytes;
  plan.blocks = static_cast<int>(std::clamp<uint64_t>(wanted, 1, all));
  const uint64_t parts = is_input_whole(collective) ? 1 : layout.size;
  const uint64_t stride = layout.slot_bytes / parts / kLineBytes * kLineBytes;
  const uint64_t of_block = part_of({0, longest}, 0, plan.blocks, element).count;
  const uint64_t room = std::max<uint64_t>(1, stride / element);
  plan.chunk = uneven ? room : std::max<uint64_t>(1, std::min(room, of_block));
  plan.chunks = chunks_of(of_block, plan.chunk);
  plan.threads = uneven ? kGpuThreads : whole_warps(plan.chunk * element * parts / kPackBytes);
  return plan;
}

GpuPlan choose_message(uint64_t bytes) {
  GpuPlan plan;
  plan.blocks =
      static_cast<int>(std::min<uint64_t>(chunks_of(bytes, kChannelSlotBytes), kChannelBlocks));
  plan.threads = whole_warps(bytes / kPackBytes);
  return plan;
}

Explanation explain_gpu(Collective collective, uint64_t bytes, const GpuLayout& layout) {
  const uint64_t part = is_input_whole(collective) ? bytes : bytes / layout.size;
  const int payload = reduces(collective) ? kPackBytes : kMovePayload;
  const GpuPlan plan = choose_gpu(collective, Algorithm::kAuto, part, 1, payload, false, layout);
  Explanation e;
  e.algorithm = name_of(plan.algorithm);
  e.blocks = plan.blocks;
  e.chunk_bytes = plan.chunk;
  e.reason = plan.pushes ? "pushed in one hop: the data is its own signal"
                         : "through staging slots of " + std::to_string(layout.slot_bytes) +
                               " bytes, " + std::to_string(plan.chunks) + " chunks a block";
  e.reason += "; " + std::to_string(plan.threads) + " threads a block";
  return e;
}

}  // namespace dda
