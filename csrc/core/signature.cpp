#include "core/signature.h"

namespace dda {

std::string Signature::describe() const {
  const Collective what = collective();
  std::string text = name_of(what);
  if (what == Collective::kBarrier || what == Collective::kRefused) return text;
  text += std::string("(") + name_of(dtype());
  const bool is_pairwise = what == Collective::kAllToAll;
  if (!is_pairwise || root() == 0) {
    text += ", " + std::to_string(count()) + (is_pairwise ? " elements to each" : " elements");
  }
  const bool reduces = what == Collective::kAllReduce || what == Collective::kReduce ||
                       what == Collective::kReduceScatter;
  const bool rooted = what == Collective::kReduce || what == Collective::kBroadcast ||
                      what == Collective::kGather || what == Collective::kScatter;
  if (reduces) text += std::string(", ") + name_of(reduce());
  if (rooted) text += ", root " + std::to_string(root());
  if (!rooted && root() != 0) text += ", uneven parts";
  if (algorithm() != Algorithm::kAuto) text += std::string(", ") + name_of(algorithm());
  return text + ")";
}

uint64_t fold_counts(const int64_t* counts, int n) {
  uint64_t hash = 1469598103934665603u;
  for (int i = 0; i < n; ++i) hash = (hash ^ static_cast<uint64_t>(counts[i])) * 1099511628211u;
  return (hash >> 40) | 1;
}

}  // namespace dda
