// The operators without data: what torch.compile and meta tensors need to know of the results.

#include <torch/library.h>

#include <string_view>

#include "torch/operators.h"

namespace dda {
namespace {

int64_t ranks_of(const std::string& group_name) { return group_named(group_name)->getSize(); }

at::Tensor all_reduce(const at::Tensor& input, std::string_view, const std::string&,
                      std::string_view) {
  return input.new_empty_symint(input.sym_sizes());
}

void all_reduce_out(const at::Tensor&, std::string_view, const std::string&, std::string_view,
                    at::Tensor&) {}

void all_reduce_(at::Tensor&, std::string_view, const std::string&, std::string_view) {}

void reduce_(at::Tensor&, int64_t, std::string_view, const std::string&) {}

void broadcast_(at::Tensor&, int64_t, const std::string&) {}

at::Tensor all_gather(const at::Tensor& input, const std::string& group_name) {
  return new_gathered(input, ranks_of(group_name));
}

void all_gather_out(const at::Tensor&, const std::string&, at::Tensor&) {}

at::Tensor reduce_scatter(const at::Tensor& input, std::string_view,
                          const std::string& group_name) {
  return new_scattered(input, ranks_of(group_name));
}

void reduce_scatter_out(const at::Tensor&, std::string_view, const std::string&, at::Tensor&) {}

at::Tensor gather(const at::Tensor& input, int64_t root, const std::string& group_name) {
  const auto group = group_named(group_name);
  return new_gathered(input, group->getRank() == root ? group->getSize() : 0);
}

void scatter_(at::Tensor&, const std::optional<at::Tensor>&, int64_t, const std::string&) {}

at::Tensor all_to_all_single(const at::Tensor& input, OptionalSplits output_splits, OptionalSplits,
                             const std::string&) {
  return new_exchanged(input, output_splits);
}

void all_to_all_single_out(const at::Tensor&, OptionalSplits, OptionalSplits, const std::string&,
                           at::Tensor&) {}

TORCH_LIBRARY_IMPL(dda, Meta, m) {
  m.impl("all_reduce", all_reduce);
  m.impl("all_reduce.out", all_reduce_out);
  m.impl("all_reduce_", all_reduce_);
  m.impl("reduce_", reduce_);
  m.impl("broadcast_", broadcast_);
  m.impl("all_gather", all_gather);
  m.impl("all_gather.out", all_gather_out);
  m.impl("reduce_scatter", reduce_scatter);
  m.impl("reduce_scatter.out", reduce_scatter_out);
  m.impl("gather", gather);
  m.impl("scatter_", scatter_);
  m.impl("all_to_all_single", all_to_all_single);
  m.impl("all_to_all_single.out", all_to_all_single_out);
}

}  // namespace
}  // namespace dda
