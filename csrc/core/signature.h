// What a rank says about a call when it enters it: 64 bits that must be equal on all ranks.
//
// The word is not a hash but the call itself, packed, so that a rank that finds a difference can
// name both sides. all_to_all is the exception: its counts differ between pairs of ranks, so they
// stand in a row of counts beside the entry and only `uneven` says where to look.
#pragma once

#include <string>

#include "dda/group.h"

namespace dda {

struct Signature {
  uint64_t word = 0;

  static constexpr int kCountBits = 38;
  static constexpr int kRootBits = 11;
  static constexpr uint64_t kMaxCount = (uint64_t{1} << kCountBits) - 1;

  static Signature of(const Call& call, uint64_t count, uint64_t root) {
    uint64_t w = static_cast<uint64_t>(call.collective);
    w = w << 5 | static_cast<uint64_t>(call.dtype);
    w = w << 4 | static_cast<uint64_t>(call.reduce);
    w = w << 2 | static_cast<uint64_t>(call.algorithm);
    w = w << kRootBits | (root & ((1u << kRootBits) - 1));
    w = w << kCountBits | (count & kMaxCount);
    return {w};
  }
  static Signature refused() {
    Call call;
    call.collective = Collective::kRefused;
    return of(call, 0, 0);
  }

  uint64_t count() const { return word & kMaxCount; }
  int root() const { return word >> kCountBits & ((1 << kRootBits) - 1); }
  Algorithm algorithm() const { return static_cast<Algorithm>(word >> 49 & 3); }
  ReduceOp reduce() const { return static_cast<ReduceOp>(word >> 51 & 15); }
  DType dtype() const { return static_cast<DType>(word >> 55 & 31); }
  Collective collective() const { return static_cast<Collective>(word >> 60); }

  bool operator==(const Signature& other) const { return word == other.word; }
  bool operator!=(const Signature& other) const { return word != other.word; }

  // Equal; or two all_to_alls of which one is uneven, whose rows of counts will tell.
  bool agrees_with(const Signature& other) const {
    const bool rows = collective() == Collective::kAllToAll && (root() | other.root()) != 0;
    return word == other.word ||
           (rows && collective() == other.collective() && dtype() == other.dtype());
  }

  // For example "all_reduce(float32, 100 elements, sum)".
  std::string describe() const;
};

// A root field for calls with uneven parts: some bits that depend on every count, never zero.
uint64_t fold_counts(const int64_t* counts, int n);

}  // namespace dda
