// What a call means, and the parts of CpuGroup that ask for it.

#include "engine/describe.h"

#include <algorithm>

#include "core/collective.h"
#include "engine/cpu_group.h"

namespace dda {
namespace {

bool are_equal(const int64_t* counts, int n) {
  return counts == nullptr ||
         std::all_of(counts, counts + n, [&](int64_t c) { return c == counts[0]; });
}

int64_t largest(const int64_t* counts, int n) { return *std::max_element(counts, counts + n); }

void place(Parts& parts, const void* base, const void* const* pointers, const int64_t* counts,
           std::vector<uint64_t>& offsets) {
  parts.base = static_cast<unsigned char*>(const_cast<void*>(base));
  parts.pointers = const_cast<void* const*>(pointers);
  parts.counts = counts;
  if (counts == nullptr) return;
  uint64_t at = 0;
  for (size_t p = 0; p < offsets.size(); ++p) {
    offsets[p] = at;
    at += static_cast<uint64_t>(counts[p]) * parts.element;
  }
  parts.offsets = offsets.data();
}

}  // namespace

Signature sign(const Call& given, int size) {
  Call call = given;
  if (!reduces(call.collective)) call.reduce = ReduceOp::kSum;  // it says nothing there
  const bool is_all_to_all = call.collective == Collective::kAllToAll;
  const int64_t* const counts = is_output_whole(call.collective) ? call.in_counts : call.out_counts;
  if (is_all_to_all) {
    const bool even = are_equal(call.in_counts, size) && are_equal(call.out_counts, size) &&
                      (call.in_counts == nullptr) == (call.out_counts == nullptr);
    const uint64_t count = call.in_counts != nullptr ? call.in_counts[0] : call.count;
    const bool matched = call.in_counts == nullptr || call.in_counts[0] == call.out_counts[0];
    return even && matched ? Signature::of(call, count, 0) : Signature::of(call, 0, 1);
  }
  if (are_equal(counts, size)) {
    return Signature::of(call, call.count, is_rooted(call.collective) ? call.root : 0);
  }
  uint64_t total = 0;
  for (int p = 0; p < size; ++p) total += counts[p];
  return Signature::of(call, total, fold_counts(counts, size));
}

uint64_t longest_part(const Call& call, int size) {
  int64_t longest = call.in_counts == nullptr && call.out_counts == nullptr ? call.count : 0;
  if (call.in_counts != nullptr) longest = std::max(longest, largest(call.in_counts, size));
  if (call.out_counts != nullptr) longest = std::max(longest, largest(call.out_counts, size));
  return longest;
}

Plan CpuGroup::plan_for(const Call& call, uint64_t longest, bool may_read) const {
  Tuning tuning = tuning_;
  if (!may_read) tuning.single_copy_bytes = UINT64_MAX;
  return choose(call.collective, call.algorithm, longest, size_of(call.dtype), layout_, tuning);
}

// A large output that is not also the input is not in the caches: to write it through them would
// first read it from memory.
bool CpuGroup::is_streamed(const Call& call) const {
  constexpr uint64_t kLeastBytes = 4 << 20;
  const uint64_t parts = is_output_whole(call.collective) ? 1 : size_;
  return call.in != call.out && call.count * parts * size_of(call.dtype) >= kLeastBytes;
}

Task CpuGroup::cut(const Call& call, const Plan& plan) {
  Task t;
  t.element = t.in.element = t.out.element = size_of(call.dtype);
  t.chunk = plan.chunk;
  t.chunks = plan.chunks;
  t.slot = plan.slot;
  t.blocks = plan.blocks;
  t.root = call.root;
  t.streams = is_streamed(call);
  t.in.count = t.out.count = call.count;
  t.in.whole = is_input_whole(call.collective);
  t.out.whole = is_output_whole(call.collective);
  place(t.in, call.in, call.in_parts, t.in.whole ? nullptr : call.in_counts, in_offsets_);
  place(t.out, call.out, call.out_parts, t.out.whole ? nullptr : call.out_counts, out_offsets_);
  return t;
}

void CpuGroup::offer_symmetric(const Call& call, EntryRecord& entry) const {
  const uint64_t bytes = call.count * size_of(call.dtype);
  const uint64_t parts = call.collective == Collective::kReduceScatter ? size_ : 1;
  const Signature signature = entry.signature;
  switch (call.collective) {
    case Collective::kAllReduce: {
      const bool tree = plan_for(call, call.count).algorithm == Algorithm::kTree;
      // Flat in place would overwrite what peers still read; the tree writes a slice only after its
      // reader is done with it.
      if (tree || call.in != call.out) entry.where = heap_.place_of(call.in, bytes);
      if (tree) entry.where_out = heap_.place_of(call.out, bytes);
      return;
    }
    case Collective::kBroadcast:
      if (rank_ == call.root) entry.where = heap_.place_of(call.in, bytes);
      return;
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      if (call.in_parts != nullptr || (parts > 1 && signature.root() != 0)) return;
      entry.where = heap_.place_of(call.in, parts * bytes);
      return;
    default:
      return;
  }
}

// Says where peers may read the input in this process. Not in an all_to_all in place: a rank would
// overwrite what its peers still have to read.
void CpuGroup::offer_addresses(const Task& task, EntryRecord& entry) const {
  uint64_t* const addresses = arenas_[rank_].addresses(number_ & 1);
  entry.is_readable = true;
  for (int p = 0; p < size_; ++p) {
    const unsigned char* const part = task.in.at(p);
    addresses[p] = reinterpret_cast<uint64_t>(part);
    if (!task.in.whole && task.in.count_of(p) != 0) entry.is_readable &= part != task.out.at(p);
  }
}

bool CpuGroup::are_all_readable() const {
  return std::all_of(arenas_.begin(), arenas_.end(), [&](const ArenaView& arena) {
    return arena.entry(number_ & 1).is_readable != 0;
  });
}

void CpuGroup::publish_rows(const Call& call, EntryRecord& entry) {
  const ArenaView& mine = arenas_[rank_];
  int64_t* const in = mine.row_in(number_ & 1);
  int64_t* const out = mine.row_out(number_ & 1);
  for (int p = 0; p < size_; ++p) {
    in[p] = call.in_counts != nullptr ? call.in_counts[p] : static_cast<int64_t>(call.count);
    out[p] = call.out_counts != nullptr ? call.out_counts[p] : static_cast<int64_t>(call.count);
  }
  entry.longest = longest_part(call, size_);
}

// Every rank looks at every pair, so that all raise alike.
void CpuGroup::check_rows(const Call& call, uint64_t* longest) {
  const uint32_t parity = number_ & 1;
  bool uneven = false;
  for (const ArenaView& arena : arenas_) {
    const Entry& e = arena.entry(parity);
    uneven |= Signature{e.signature}.root() != 0;
    *longest = std::max(*longest, e.longest);
  }
  for (int i = 0; uneven && i < size_; ++i) {
    for (int j = 0; j < size_; ++j) {
      const int64_t sent = arenas_[i].row_in(parity)[j];
      const int64_t expected = arenas_[j].row_out(parity)[i];
      if (sent == expected) continue;
      throw Error(Error::Kind::kMismatch,
                  std::string(name_of(call.collective)) + " (call " + std::to_string(number_) +
                      ") on rank " + std::to_string(rank_) + ": rank " + std::to_string(i) +
                      " sends " + std::to_string(sent) + " elements to rank " + std::to_string(j) +
                      ", which expects " + std::to_string(expected) +
                      ". No output was written. Make rank " + std::to_string(i) +
                      "'s input splits and rank " + std::to_string(j) + "'s output splits agree.",
                  i);
    }
  }
}

}  // namespace dda
