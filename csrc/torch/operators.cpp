#include "torch/operators.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <string_view>
#include <utility>
#include <vector>

#include "torch/dtypes.h"
#include "torch/executor.h"

namespace dda {

c10::intrusive_ptr<c10d::ProcessGroup> group_named(const std::string& name) {
  return c10d::resolve_process_group(name);
}

at::Tensor new_gathered(const at::Tensor& input, int64_t ranks) {
  TORCH_CHECK(input.dim() > 0,
              "dda: a tensor without dimensions cannot be gathered; use reshape(1)");
  std::vector<c10::SymInt> shape = input.sym_sizes().vec();
  shape[0] = shape[0] * ranks;
  return input.new_empty_symint(shape);
}

at::Tensor new_scattered(const at::Tensor& input, int64_t ranks) {
  TORCH_CHECK(input.dim() > 0, "dda reduce_scatter: a tensor without dimensions cannot be split");
  std::vector<c10::SymInt> shape = input.sym_sizes().vec();
  TORCH_SYM_CHECK((shape[0] % ranks).sym_eq(0), "dda reduce_scatter: ", shape[0],
                  " rows do not divide into equal parts for ", ranks, " ranks");
  shape[0] = shape[0] / ranks;
  return input.new_empty_symint(shape);
}

at::Tensor new_exchanged(const at::Tensor& input, OptionalSplits output_splits) {
  if (!output_splits) return input.new_empty_symint(input.sym_sizes());
  TORCH_CHECK(input.dim() > 0,
              "dda all_to_all_single: a tensor without dimensions cannot be split");
  std::vector<c10::SymInt> shape = input.sym_sizes().vec();
  shape[0] = 0;
  for (const c10::SymInt& rows : *output_splits) shape[0] = shape[0] + rows;
  return input.new_empty_symint(shape);
}

namespace {

// With TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps a backend in one that checks calls. dda checks
// its own calls, so its operators go to the wrapped one. Through Python, since a torch without gloo
// does not have the class.
c10::intrusive_ptr<c10d::Backend> backend_named(const std::string& group_name,
                                                at::DeviceType device) {
  auto backend = group_named(group_name)->getBackend(device);
  if (dynamic_cast<Executor*>(backend.get()) != nullptr) return backend;
  const pybind11::gil_scoped_acquire gil;
  const pybind11::object wrapper = pybind11::cast(backend);
  if (!pybind11::hasattr(wrapper, "wrapped_pg")) return backend;
  return wrapper.attr("wrapped_pg").cast<c10::intrusive_ptr<c10d::Backend>>();
}

// A group's backend, held while an operator runs.
class Target {
 public:
  Target(const std::string& group_name, at::DeviceType device)
      : device_(device),
        backend_(backend_named(group_name, device)),
        executor_(dynamic_cast<Executor*>(backend_.get())) {
    TORCH_CHECK(executor_ != nullptr, "dda: the group '", group_name, "' has the ", device,
                " backend '", backend_->getBackendName(),
                "'; make one with backend=\"dda\", or call dda.",
                "all_reduce(...) and its siblings, which do so");
  }

  template <typename Prepare>
  void run(Prepare prepare) const {
    prepare_and_execute(*executor_, on_gpu(), [&] { return prepare(executor_->place()); });
  }
  // The result of `make`; what it throws, the peers are told.
  template <typename Make>
  at::Tensor make(Make make) const {
    try {
      return make(executor_->place());
    } catch (const std::exception& error) {
      executor_->refuse(error, on_gpu());
      throw;
    }
  }

  void refuse(const std::exception& error) const noexcept { executor_->refuse(error, on_gpu()); }

 private:
  bool on_gpu() const { return device_ == at::kCUDA; }

  const at::DeviceType device_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Executor* executor_;
};

using calls::Place;

Reduction reduction_of(std::string_view op) { return {parse_reduce_op(op)}; }

std::vector<int64_t> numbers(OptionalSplits splits) {
  std::vector<int64_t> result;
  if (!splits) return result;
  for (const c10::SymInt& split : *splits) result.push_back(split.guard_int(__FILE__, __LINE__));
  return result;
}

void all_reduce_out(const at::Tensor& input, std::string_view op, const std::string& group_name,
                    std::string_view algorithm, at::Tensor& out) {
  Target(group_name, input.device().type()).run([&](Place) {
    return calls::all_reduce(input, out, reduction_of(op), parse_algorithm(algorithm));
  });
}

at::Tensor all_reduce(const at::Tensor& input, std::string_view op, const std::string& group_name,
                      std::string_view algorithm) {
  at::Tensor out = at::empty_like(input, at::MemoryFormat::Contiguous);
  all_reduce_out(input, op, group_name, algorithm, out);
  return out;
}

void all_reduce_(at::Tensor& self, std::string_view op, const std::string& group_name,
                 std::string_view algorithm) {
  all_reduce_out(self, op, group_name, algorithm, self);
}

void reduce_(at::Tensor& self, int64_t root, std::string_view op, const std::string& group_name) {
  Target(group_name, self.device().type()).run([&](Place place) {
    return calls::reduce(self, self, reduction_of(op), root, place);
  });
}

void broadcast_(at::Tensor& self, int64_t root, const std::string& group_name) {
  Target(group_name, self.device().type()).run([&](Place place) {
    return calls::broadcast(self, root, place);
  });
}

void all_gather_out(const at::Tensor& input, const std::string& group_name, at::Tensor& out) {
  Target(group_name, input.device().type()).run([&](Place place) {
    return calls::all_gather(input, out, place);
  });
}

at::Tensor all_gather(const at::Tensor& input, const std::string& group_name) {
  const Target target(group_name, input.device().type());
  at::Tensor out = target.make([&](Place place) { return new_gathered(input, place.size); });
  target.run([&](Place place) { return calls::all_gather(input, out, place); });
  return out;
}

void reduce_scatter_out(const at::Tensor& input, std::string_view op, const std::string& group_name,
                        at::Tensor& out) {
  Target(group_name, input.device().type()).run([&](Place place) {
    return calls::reduce_scatter(input, out, reduction_of(op), place);
  });
}

at::Tensor reduce_scatter(const at::Tensor& input, std::string_view op,
                          const std::string& group_name) {
  const Target target(group_name, input.device().type());
  at::Tensor out = target.make([&](Place place) { return new_scattered(input, place.size); });
  target.run(
      [&](Place place) { return calls::reduce_scatter(input, out, reduction_of(op), place); });
  return out;
}

// The root's result has everybody's parts; the others' has no rows.
at::Tensor gather(const at::Tensor& input, int64_t root, const std::string& group_name) {
  const Target target(group_name, input.device().type());
  at::Tensor out = target.make(
      [&](Place place) { return new_gathered(input, place.rank == root ? place.size : 0); });
  target.run([&](Place place) {
    std::vector<at::Tensor> parts;
    if (place.rank == root) parts = out.split_with_sizes(std::vector(place.size, input.size(0)));
    return calls::gather(input, parts, root, place);
  });
  return out;
}

void scatter_(at::Tensor& self, const std::optional<at::Tensor>& input, int64_t root,
              const std::string& group_name) {
  Target(group_name, self.device().type()).run([&](Place place) {
    std::vector<at::Tensor> parts;
    if (place.rank == root) {
      TORCH_CHECK(input && input->dim() > 0 && self.dim() > 0 &&
                      input->size(0) == self.size(0) * place.size,
                  "dda scatter: the root needs an input with ", place.size,
                  " times as many rows as the output");
      parts = input->split_with_sizes(std::vector(place.size, self.size(0)));
    }
    return calls::scatter(parts, self, root, place);
  });
}

void all_to_all_single_out(const at::Tensor& input, OptionalSplits output_splits,
                           OptionalSplits input_splits, const std::string& group_name,
                           at::Tensor& out) {
  Target(group_name, input.device().type()).run([&](Place place) {
    return calls::all_to_all(input, out, numbers(input_splits), numbers(output_splits), place);
  });
}

at::Tensor all_to_all_single(const at::Tensor& input, OptionalSplits output_splits,
                             OptionalSplits input_splits, const std::string& group_name) {
  const Target target(group_name, input.device().type());
  at::Tensor out = target.make([&](Place) { return new_exchanged(input, output_splits); });
  target.run([&](Place place) {
    return calls::all_to_all(input, out, numbers(input_splits), numbers(output_splits), place);
  });
  return out;
}

void barrier(const std::string& group_name) {
  Target(group_name, at::kCPU).run([](Place) { return calls::barrier(); });
}

// Operators that write to an argument return nothing: torch.compile refuses those that return it.
}  // namespace

void refuse_in(const std::string& group_name, const std::exception& error,
               at::DeviceType device) noexcept {
  try {
    Target(group_name, device).refuse(error);
  } catch (const std::exception&) {
    // There is no such group, so nobody waits.
  }
}

namespace {

TORCH_LIBRARY(dda, m) {
  m.def("all_reduce(Tensor input, str op, str group_name, str algorithm=\"auto\") -> Tensor");
  m.def(
      "all_reduce.out(Tensor input, str op, str group_name, str algorithm=\"auto\", *, "
      "Tensor(a!) out) -> ()");
  m.def("all_reduce_(Tensor(a!) self, str op, str group_name, str algorithm=\"auto\") -> ()");
  m.def("reduce_(Tensor(a!) self, int root, str op, str group_name) -> ()");
  m.def("broadcast_(Tensor(a!) self, int root, str group_name) -> ()");
  m.def("all_gather(Tensor input, str group_name) -> Tensor");
  m.def("all_gather.out(Tensor input, str group_name, *, Tensor(a!) out) -> ()");
  m.def("reduce_scatter(Tensor input, str op, str group_name) -> Tensor");
  m.def("reduce_scatter.out(Tensor input, str op, str group_name, *, Tensor(a!) out) -> ()");
  m.def("gather(Tensor input, int root, str group_name) -> Tensor");
  m.def("scatter_(Tensor(a!) self, Tensor? source, int root, str group_name) -> ()");
  m.def(
      "all_to_all_single(Tensor input, SymInt[]? output_splits, SymInt[]? input_splits, "
      "str group_name) -> Tensor");
  m.def(
      "all_to_all_single.out(Tensor input, SymInt[]? output_splits, SymInt[]? input_splits, "
      "str group_name, *, Tensor(a!) out) -> ()");
  m.def("barrier(str group_name) -> ()", barrier);
}

void implement(torch::Library& m) {
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

TORCH_LIBRARY_IMPL(dda, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(dda, CUDA, m) { implement(m); }

}  // namespace
}  // namespace dda
