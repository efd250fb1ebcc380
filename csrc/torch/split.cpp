#include "torch/split.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "torch/create.h"

namespace dda {

c10::intrusive_ptr<c10d::Backend> Splitter::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks, int rank,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const DdaOptions& parent) {
  const auto me = std::find(ranks.begin(), ranks.end(), rank);
  if (me == ranks.end()) return nullptr;
  if (last_store_.lock() == store) {
    if (auto child = last_child_.lock()) return child;
  }
  const auto* own = dynamic_cast<const DdaOptions*>(opts.get());
  auto options = c10::make_intrusive<DdaOptions>(own != nullptr ? *own : parent);
  options->timeout = opts->timeout;
  options->group_name = opts->group_name;
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("dda/split/" + opts->group_name, store);
  auto child = create_backend(prefixed, static_cast<int>(me - ranks.begin()),
                              static_cast<int>(ranks.size()), options);
  last_store_ = c10::weak_intrusive_ptr<c10d::Store>(store);
  last_child_ = c10::weak_intrusive_ptr<c10d::Backend>(child);
  return child;
}

}  // namespace dda
