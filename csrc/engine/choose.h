// Which way a call takes: the algorithm, how many blocks, and how it is cut into chunks. A pure
// function of what is equal on all ranks.
#pragma once

#include "dda/group.h"
#include "memory/layout.h"

namespace dda {

// Crossover points of this machine.
struct Tuning {
  uint64_t flat_max_bytes;     // an all_reduce or reduce up to here is flat
  uint64_t block_bytes;        // a call gets one block for each so many bytes
  uint64_t single_copy_bytes;  // parts from here on are read in their owner's memory,
  uint64_t single_copy_end;    // … and from here on are not
};
// `can_read`: whether all ranks can read each other's memory.
Tuning default_tuning(const Layout& layout, bool can_read);

struct Plan {
  Algorithm algorithm = Algorithm::kFlat;
  int blocks = 1;
  uint64_t chunk = 1;   // elements of a part
  uint64_t chunks = 1;  // of the block that has most
  uint64_t slot = 0;    // bytes of a staging slot in this call
  // Whether the entry announces chunk 0 (a single chunk of a single block), or is empty.
  bool enters_with_data = true;
  // Whether nothing is staged: the one chunk is read in its owner's process, if every rank lets it.
  bool single_copy = false;
};

// `longest`: elements of the longest part that a rank contributes or receives.
Plan choose(Collective collective, Algorithm asked, uint64_t longest, uint64_t element,
            const Layout& layout, const Tuning& tuning);

Explanation explain(Collective collective, uint64_t bytes, bool symmetric, const Layout& layout,
                    const Tuning& tuning);

}  // namespace dda
