#include "torch/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <vector>

#include "torch/calls.h"

namespace dda {
namespace {

// The result of `prepare`; what it throws, the peers are told.
template <typename Prepare>
auto prepared(Group& group, Prepare prepare) {
  try {
    return prepare();
  } catch (const std::exception& error) {
    refuse(group, error);
    throw;
  }
}

// Gathers `mine` from every rank into tensors that `make_part` makes.
template <typename Make>
std::vector<at::Tensor> gather_parts(Group& group, const at::Tensor& mine, Make make_part,
                                     milliseconds timeout) {
  std::vector<at::Tensor> parts;
  const Operation operation = prepared(group, [&] {
    for (int r = 0; r < group.size(); ++r) parts.push_back(make_part(r));
    Operation gather = calls::all_gather(mine, parts, {group.rank(), group.size()});
    gather.call.timeout = timeout;
    return gather;
  });
  operation.run(group);
  return parts;
}

}  // namespace

void sparse_all_reduce(Group& group, const Operation& operation) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor& tensor = operation.out[0];
  const milliseconds timeout = operation.call.timeout;
  at::Tensor indices, values;
  const at::Tensor header = prepared(group, [&] {
    const at::Tensor mine = tensor.coalesce();
    indices = mine._indices().contiguous();
    values = mine._values().contiguous();
    std::vector<int64_t> facts{values.size(0), indices.size(0)};
    facts.insert(facts.end(), tensor.sizes().begin(), tensor.sizes().end());
    return at::tensor(facts, at::kLong);
  });
  const auto headers =
      gather_parts(group, header, [&](int) { return at::empty_like(header); }, timeout);
  for (const at::Tensor& theirs : headers) {
    TORCH_CHECK(theirs.slice(0, 1).equal(header.slice(0, 1)),
                "dda all_reduce: the ranks' sparse tensors differ in shape");
  }
  const auto count_of = [&](int r) { return headers[r][0].item<int64_t>(); };
  const auto all_indices = gather_parts(
      group, indices,
      [&](int r) { return at::empty({indices.size(0), count_of(r)}, indices.options()); }, timeout);
  const auto all_values = gather_parts(
      group, values,
      [&](int r) {
        std::vector<int64_t> shape = values.sizes().vec();
        shape[0] = count_of(r);
        return at::empty(shape, values.options());
      },
      timeout);
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0),
                                               tensor.sizes(), tensor.options());
  tensor.copy_(sum.coalesce());
}

}  // namespace dda
