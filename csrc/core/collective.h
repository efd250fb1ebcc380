// What kind of call a collective is.
#pragma once

#include "dda/types.h"

namespace dda {

// Whether it has a root.
inline bool is_rooted(Collective c) {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}

// Whether it computes, so that ReduceOp says something.
inline bool reduces(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kReduce || c == Collective::kReduceScatter;
}

// Whether it has a tree form besides the flat one.
inline bool has_tree(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kReduce;
}

// Whether a rank's input, or output, is one tensor; otherwise it has a part for each rank.
inline bool is_input_whole(Collective c) {
  return c != Collective::kReduceScatter && c != Collective::kScatter && c != Collective::kAllToAll;
}
inline bool is_output_whole(Collective c) {
  return c != Collective::kAllGather && c != Collective::kGather && c != Collective::kAllToAll;
}

}  // namespace dda
