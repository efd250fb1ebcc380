// How a group comes to be: agree on the layout, make an arena, trade it with the peers.

#include <algorithm>
#include <cstring>

#include "core/env.h"
#include "core/partition.h"
#include "engine/cpu_group.h"
#include "engine/create.h"
#include "engine/failpoint.h"

namespace dda {
namespace {

constexpr uint64_t kMailboxTotal = 512 << 10;  // of all rings of a rank together
// Of all blocks together: more than a core's own caches hold, see CpuGroup::Cursor.
constexpr uint64_t kStagingTotal = 4 << 20;

Layout layout_for(const GroupOptions& options, int blocks) {
  const auto size = static_cast<uint64_t>(options.size);
  const uint64_t asked = options.slot_bytes != 0 ? options.slot_bytes : env().slot_bytes;
  const uint64_t slot = std::max(asked, size * kLineBytes);  // a line for each rank at least
  const int used = std::clamp(blocks, 1, kMaxBlocks);
  const uint64_t slots = std::clamp<uint64_t>(kStagingTotal / slot / used, 4, 64);
  const uint64_t mailbox = std::clamp<uint64_t>(kMailboxTotal / size, 8 << 10, 256 << 10);
  return Layout(options.size, used, slot, static_cast<int>(slots), mailbox);
}

void check_options(const GroupOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks || options.rank < 0 ||
      options.rank >= options.size) {
    throw Error(Error::Kind::kInvalid, "no group of " + std::to_string(options.size) +
                                           " ranks with rank " + std::to_string(options.rank) +
                                           "; a group has 1 to " + std::to_string(kMaxRanks));
  }
}

void check_environment() {
  const std::string problem = check_env();
  if (!problem.empty()) throw Error(Error::Kind::kInvalid, problem);
  if (find_cpu_ops(env().isa.c_str()) == nullptr) {
    throw Error(Error::Kind::kInvalid,
                "DDA_ISA=" + env().isa + ": this CPU or build lacks it; use auto");
  }
}

}  // namespace

void prepare_arena(unsigned char* base, const Layout& layout, const GroupOptions& options,
                   const uint64_t* nonce) {
  const ArenaView arena = {base, &layout};
  const uint32_t before = options.calls_before;
  arena.entry(before & 1).number.store(before, std::memory_order_relaxed);
  arena.entry(~before & 1).number.store(before - 1, std::memory_order_relaxed);
  for (int block = 0; block < layout.blocks; ++block) {
    // As wide as it is: -3 makes the steps wrap too.
    const auto steps = static_cast<uint64_t>(static_cast<int32_t>(before));
    arena.step(block).store(steps, std::memory_order_relaxed);
  }
  auto* const control = reinterpret_cast<Control*>(base);
  control->magic = kMagic;
  control->rank = options.rank;
  control->size = options.size;
  std::memcpy(control->nonce, nonce, sizeof(control->nonce));
}

void verify_arenas(const std::vector<Neighbour>& all, const GroupOptions& options,
                   const uint64_t* nonce) {
  for (int r = 0; r < options.size; ++r) {
    const auto* const c = reinterpret_cast<const Control*>(all[r].segment.data());
    const bool right = c->magic == kMagic && c->rank == r && c->size == options.size &&
                       std::memcmp(c->nonce, nonce, sizeof(c->nonce)) == 0;
    if (!right) {
      throw Error(Error::Kind::kSystem,
                  "the memory that rank " + std::to_string(r) + " handed over is not its arena", r);
    }
  }
}

std::shared_ptr<Group> Group::create(std::shared_ptr<Bootstrap> store,
                                     const GroupOptions& options) {
  check_options(options);
#if defined(DDA_FAILPOINTS)
  set_failpoint_rank(options.rank);
#endif
  const std::string terms = fingerprint() + " slot_bytes=" + std::to_string(options.slot_bytes) +
                            " calls_before=" + std::to_string(options.calls_before);
  Exchange exchange(*store, options.rank, options.size, options.timeout, terms, options.threads);
  if (env().disable_shared_memory != 0 && options.size > 1) {
    throw Error(Error::Kind::kSystem, "DDA_DISABLE_SHARED_MEMORY=1: no memory is shared with peers",
                options.rank == 0 ? 1 : 0);
  }
  const Layout layout = layout_for(options, exchange.least_offer());
  std::vector<Neighbour> neighbours = exchange.trade(
      layout.total,
      [&] {
        check_environment();
        Segment mine = Segment::create(layout.total, "dda-arena");
        prepare_arena(mine.data(), layout, options, exchange.nonce());
        return mine;
      },
      [&](const std::vector<Neighbour>& all) { verify_arenas(all, options, exchange.nonce()); });
  return std::make_shared<CpuGroup>(std::move(store), options, layout, std::move(neighbours),
                                    exchange.can_all_read());
}

std::vector<std::shared_ptr<Group>> make_thread_groups(int size, const GroupOptions& options) {
  GroupOptions each = options;
  each.size = size;
  const Layout layout = layout_for(each, options.threads);
  std::vector<unsigned char*> memory;
  for (int r = 0; r < size; ++r) {
    // Never freed: a thread may leave while another still reads.
    void* const data = std::aligned_alloc(kPageBytes, layout.total);
    std::memset(data, 0, layout.total);
    const uint64_t no_nonce[2] = {0, 0};
    prepare_arena(static_cast<unsigned char*>(data), layout, each, no_nonce);
    memory.push_back(static_cast<unsigned char*>(data));
  }
  std::vector<std::shared_ptr<Group>> groups;
  for (int r = 0; r < size; ++r) {
    each.rank = r;
    std::vector<Neighbour> neighbours(size);
    for (int p = 0; p < size; ++p) neighbours[p].segment = Segment::borrow(memory[p], layout.total);
    groups.push_back(
        std::make_shared<CpuGroup>(nullptr, each, layout, std::move(neighbours), false));
  }
  return groups;
}

}  // namespace dda
