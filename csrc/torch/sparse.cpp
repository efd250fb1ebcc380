#include "torch/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <vector>

namespace dda {
namespace {

// Gathers `mine` from every rank into tensors of `shapes`.
template <typename Make>
std::vector<at::Tensor> gather_parts(Executor& executor, const at::Tensor& mine, Make make_part,
                                     milliseconds timeout) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < executor.place().size; ++r) parts.push_back(make_part(r));
  prepare_and_execute(executor, false, [&] {
    Operation operation = calls::all_gather(mine, parts, executor.place());
    operation.call.timeout = timeout;
    return operation;
  });
  return parts;
}

}  // namespace

void sparse_all_reduce(Executor& executor, const at::Tensor& tensor, Reduction reduction,
                       milliseconds timeout) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor indices, values, header;
  try {
    TORCH_CHECK(reduction.op == ReduceOp::kSum,
                "dda all_reduce: of sparse tensors there is only a ", "sum; call to_dense() for ",
                name_of(reduction.op));
    const at::Tensor mine = tensor.coalesce();
    indices = mine._indices().contiguous();
    values = mine._values().contiguous();
    std::vector<int64_t> facts{values.size(0), indices.size(0)};
    facts.insert(facts.end(), tensor.sizes().begin(), tensor.sizes().end());
    header = at::tensor(facts, at::kLong);
  } catch (const std::exception& error) {
    executor.refuse(error, false);
    throw;
  }
  const auto headers =
      gather_parts(executor, header, [&](int) { return at::empty_like(header); }, timeout);
  for (const at::Tensor& theirs : headers) {
    TORCH_CHECK(theirs.slice(0, 1).equal(header.slice(0, 1)),
                "dda all_reduce: the ranks' sparse tensors differ in shape");
  }
  const auto count_of = [&](int r) { return headers[r][0].item<int64_t>(); };
  const auto all_indices = gather_parts(
      executor, indices,
      [&](int r) { return at::empty({indices.size(0), count_of(r)}, indices.options()); }, timeout);
  const auto all_values = gather_parts(
      executor, values,
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
