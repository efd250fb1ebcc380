#include "engine/choose.h"

#include <algorithm>

#include "core/collective.h"
#include "core/env.h"

namespace dda {
namespace {

constexpr uint64_t kOverlapBytes = 32 << 10;
// Between these one copy by the kernel is faster than two of ours; above, it has to look up more
// pages than it saves.
constexpr uint64_t kSingleCopyBytes = 128 << 10;
constexpr uint64_t kSingleCopyEnd = 4 << 20;

bool has_single_copy(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllToAll;
}

}  // namespace

Tuning default_tuning(const Layout& layout, bool can_read) {
  Tuning tuning;
  // Two ranks: both forms move the same bytes between the cores, and flat has one hop.
  tuning.flat_max_bytes = layout.size == 2 ? UINT64_MAX : 16 << 10;
  if (env().flat_max_bytes >= 0) tuning.flat_max_bytes = env().flat_max_bytes;
  // A block is worth its start when it has a few chunks to move.
  tuning.block_bytes = 2 * layout.slot_bytes;
  const int64_t asked = env().single_copy_bytes;
  tuning.single_copy_bytes = !can_read ? UINT64_MAX : asked > 0 ? asked : kSingleCopyBytes;
  tuning.single_copy_end = asked > 0 ? UINT64_MAX : kSingleCopyEnd;
  return tuning;
}

Plan choose(Collective collective, Algorithm asked, uint64_t longest, uint64_t element,
            const Layout& layout, const Tuning& tuning) {
  Plan plan;
  const uint64_t bytes = longest * element;
  const bool is_flat = !has_tree(collective) || bytes <= tuning.flat_max_bytes;
  plan.algorithm = asked != Algorithm::kAuto ? asked
                   : is_flat                 ? Algorithm::kFlat
                                             : Algorithm::kTree;
  plan.blocks = static_cast<int>(
      std::clamp<uint64_t>(bytes / tuning.block_bytes, 1, static_cast<uint64_t>(layout.blocks)));

  const uint64_t parts = is_input_whole(collective) ? 1 : layout.size;
  // Where one rank writes and another reads, they overlap only from chunk to chunk.
  const bool overlaps = is_rooted(collective) && plan.algorithm == Algorithm::kFlat;
  const uint64_t least = round_up(parts * kLineBytes, kLineBytes);
  plan.slot =
      overlaps ? std::min(layout.slot_bytes, std::max(kOverlapBytes, least)) : layout.slot_bytes;
  const uint64_t stride = plan.slot / parts / kLineBytes * kLineBytes;
  const uint64_t of_block = part_of({0, longest}, 0, plan.blocks, element).count;
  plan.single_copy = has_single_copy(collective) && bytes >= tuning.single_copy_bytes &&
                     bytes < tuning.single_copy_end;
  plan.chunk =
      std::max<uint64_t>(1, plan.single_copy ? of_block : std::min(stride / element, of_block));
  plan.chunks = chunks_of(of_block, plan.chunk);
  // The entry of all_to_all is always empty: how many chunks there are depends on everybody's rows.
  plan.enters_with_data = plan.blocks == 1 && plan.chunks == 1 &&
                          collective != Collective::kAllToAll && !plan.single_copy;
  return plan;
}

Explanation explain(Collective collective, uint64_t bytes, bool symmetric, const Layout& layout,
                    const Tuning& tuning) {
  const uint64_t part = is_input_whole(collective) ? bytes : bytes / layout.size;
  const Plan plan = choose(collective, Algorithm::kAuto, part, 1, layout, tuning);
  Explanation e;
  e.algorithm = layout.size == 1 ? "copy" : name_of(plan.algorithm);
  e.blocks = plan.blocks;
  e.chunk_bytes = plan.chunk;
  if (layout.size == 1) {
    e.reason = "one rank: nothing to exchange";
  } else if (!has_tree(collective)) {
    e.reason = "the only form that " + std::string(name_of(collective)) + " has";
  } else {
    e.reason = std::to_string(bytes) + " bytes, and flat is taken up to " +
               std::to_string(tuning.flat_max_bytes) + " bytes with " +
               std::to_string(layout.size) + " ranks";
  }
  e.reason += plan.enters_with_data ? "; one chunk, announced by the entry"
                                    : "; " + std::to_string(plan.chunks) + " chunks in each of " +
                                          std::to_string(plan.blocks) + " blocks";
  if (plan.single_copy) {
    e.reason += ", read in their owner's memory (process_vm_readv)";
  }
  // What CpuGroup::offer_symmetric offers.
  const bool is_offered = collective != Collective::kAllToAll &&
                          collective != Collective::kScatter && collective != Collective::kBarrier;
  if (symmetric && is_offered && !plan.enters_with_data) {
    e.reason += ", read where they are";
    if (collective == Collective::kAllReduce && plan.algorithm == Algorithm::kFlat) {
      e.reason += " if the output is another tensor";
    }
  }
  return e;
}

}  // namespace dda
