#include "engine/validate.h"

#include "core/collective.h"
#include "core/signature.h"

namespace dda {
namespace {

std::string check_counts(const char* name, const int64_t* counts, int size) {
  for (int p = 0; counts != nullptr && p < size; ++p) {
    if (counts[p] < 0 || static_cast<uint64_t>(counts[p]) > Signature::kMaxCount) {
      return std::string(name) + "[" + std::to_string(p) + "] is " + std::to_string(counts[p]) +
             "; a part has 0 to " + std::to_string(Signature::kMaxCount) + " elements";
    }
  }
  return "";
}

}  // namespace

std::string find_problem_in(const Call& call, int size) {
  if (call.collective >= Collective::kSend) return "not a collective";
  if (call.root < 0 || call.root >= size) {
    return "root " + std::to_string(call.root) + " is not in the group of " + std::to_string(size);
  }
  if (reduces(call.collective) && !is_defined(call.reduce, call.dtype)) {
    return std::string(name_of(call.reduce)) + " is not defined for " + name_of(call.dtype);
  }
  if (call.algorithm == Algorithm::kTree && !has_tree(call.collective)) {
    return std::string("there is no tree form of ") + name_of(call.collective);
  }
  if (call.count > Signature::kMaxCount) {
    return std::to_string(call.count) + " elements are more than one call can move (" +
           std::to_string(Signature::kMaxCount) + ")";
  }
  const std::string in = check_counts("in_counts", call.in_counts, size);
  return in.empty() ? check_counts("out_counts", call.out_counts, size) : in;
}

}  // namespace dda
