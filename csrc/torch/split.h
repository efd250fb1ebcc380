// Splits a group. A child is a new group over a prefix of the store.
//
// torch asks once for each device type, with the same store, though one backend serves them all; so
// the splitter remembers the last child and the store it was made for.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

#include "torch/options.h"

namespace dda {

class Splitter {
 public:
  // `ranks` are the members, in the order of the new group; `rank` is this process. nullptr if it
  // is not among them. What `opts` does not say is taken from the `parent`.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks, int rank,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const DdaOptions& parent);

 private:
  c10::weak_intrusive_ptr<c10d::Store> last_store_{c10::intrusive_ptr<c10d::Store>()};
  c10::weak_intrusive_ptr<c10d::Backend> last_child_{c10::intrusive_ptr<c10d::Backend>()};
};

}  // namespace dda
