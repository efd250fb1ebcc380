// The derivatives of the operators that have one.
//
// The gradient of a rank's input sums what that input did to the outputs of all ranks:
//   all_reduce (sum, avg)      all_reduce of the gradient, with the same reduction
//   all_gather                 reduce_scatter (sum)
//   reduce_scatter (sum, avg)  all_gather, divided by the number of ranks for avg
//   all_to_all_single          all_to_all_single with the splits exchanged
// So a loss that every rank computes counts once a rank, as in torch.distributed.nn. The other
// operators raise where a gradient is asked for.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <vector>

#include "torch/operators.h"

namespace dda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Guard = at::AutoDispatchBelowADInplaceOrView;

bool needs_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

bool is_average(std::string_view op) { return op == "avg" || op == "mean"; }

// Runs `check`; what it throws, the peers are told. A tensor that is traced has no peers.
template <class Check>
void check_for_all(const at::Tensor& tensor, const std::string& group, Check check) {
  try {
    check();
  } catch (const std::exception& error) {
    const bool is_traced = tensor.is_meta() || tensor.key_set().has(c10::DispatchKey::Python);
    if (!is_traced) refuse_in(group, error, tensor.device().type());
    throw;
  }
}

void check_linear(const char* name, std::string_view op, const at::Tensor& input,
                  const std::string& group) {
  check_for_all(input, group, [&] {
    TORCH_CHECK(op == "sum" || is_average(op), "dda ", name, ": '", op,
                "' has no gradient; use sum or avg, or torch.no_grad()");
  });
}

// The operators, called through the dispatcher.

at::Tensor all_reduce(const at::Tensor& input, std::string_view op, const std::string& group,
                      std::string_view algorithm) {
  using Signature =
      at::Tensor(const at::Tensor&, std::string_view, const std::string&, std::string_view);
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("dda::all_reduce", "").typed<Signature>();
  return handle.call(input, op, group, algorithm);
}

at::Tensor all_gather(const at::Tensor& input, const std::string& group) {
  using Signature = at::Tensor(const at::Tensor&, const std::string&);
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("dda::all_gather", "").typed<Signature>();
  return handle.call(input, group);
}

at::Tensor reduce_scatter(const at::Tensor& input, std::string_view op, const std::string& group) {
  using Signature = at::Tensor(const at::Tensor&, std::string_view, const std::string&);
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("dda::reduce_scatter", "").typed<Signature>();
  return handle.call(input, op, group);
}

at::Tensor all_to_all_single(const at::Tensor& input, OptionalSplits output_splits,
                             OptionalSplits input_splits, const std::string& group) {
  using Signature =
      at::Tensor(const at::Tensor&, OptionalSplits, OptionalSplits, const std::string&);
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("dda::all_to_all_single", "")
                                 .typed<Signature>();
  return handle.call(input, output_splits, input_splits, group);
}

struct AllReduce : Function<AllReduce> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, std::string op,
                            std::string group, std::string algorithm) {
    ctx->saved_data["op"] = op;
    ctx->saved_data["group"] = group;
    ctx->saved_data["algorithm"] = algorithm;
    const Guard guard;
    return all_reduce(input, op, group, algorithm);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto& saved = ctx->saved_data;
    return {all_reduce(gradients[0], saved["op"].toStringView(), saved["group"].toStringRef(),
                       saved["algorithm"].toStringView()),
            {},
            {},
            {}};
  }
};

struct AllGather : Function<AllGather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, std::string group) {
    ctx->saved_data["group"] = group;
    const Guard guard;
    return all_gather(input, group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {reduce_scatter(gradients[0], "sum", ctx->saved_data["group"].toStringRef()), {}};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, std::string op,
                            std::string group) {
    ctx->saved_data["op"] = op;
    ctx->saved_data["group"] = group;
    const Guard guard;
    return reduce_scatter(input, op, group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const std::string group = ctx->saved_data["group"].toStringRef();
    at::Tensor gradient = all_gather(gradients[0], group);
    if (is_average(ctx->saved_data["op"].toStringView())) {
      gradient = gradient / group_named(group)->getSize();
    }
    return {gradient, {}, {}};
  }
};

struct AllToAll : Function<AllToAll> {
  using Splits = std::optional<std::vector<c10::SymInt>>;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, Splits output_splits,
                            Splits input_splits, std::string group) {
    ctx->saved_data["output_splits"] = output_splits;
    ctx->saved_data["input_splits"] = input_splits;
    ctx->saved_data["group"] = group;
    const Guard guard;
    return all_to_all_single(input, view(output_splits), view(input_splits), group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Splits output_splits = splits_of(ctx->saved_data["output_splits"]);
    const Splits input_splits = splits_of(ctx->saved_data["input_splits"]);
    return {all_to_all_single(gradients[0], view(input_splits), view(output_splits),
                              ctx->saved_data["group"].toStringRef()),
            {},
            {},
            {}};
  }
  static Splits copy(OptionalSplits splits) {
    return splits ? Splits(splits->vec()) : std::nullopt;
  }

 private:
  static OptionalSplits view(const Splits& splits) {
    return splits ? OptionalSplits(*splits) : std::nullopt;
  }
  static Splits splits_of(const c10::IValue& saved) {
    return saved.isNone() ? std::nullopt : Splits(saved.toSymIntVector());
  }
};

at::Tensor all_reduce_autograd(const at::Tensor& input, std::string_view op,
                               const std::string& group, std::string_view algorithm) {
  if (needs_gradient(input)) {
    check_linear("all_reduce", op, input, group);
    return AllReduce::apply(input, std::string(op), group, std::string(algorithm));
  }
  const Guard guard;
  return all_reduce(input, op, group, algorithm);
}

at::Tensor all_gather_autograd(const at::Tensor& input, const std::string& group) {
  if (needs_gradient(input)) return AllGather::apply(input, group);
  const Guard guard;
  return all_gather(input, group);
}

at::Tensor reduce_scatter_autograd(const at::Tensor& input, std::string_view op,
                                   const std::string& group) {
  if (needs_gradient(input)) {
    check_linear("reduce_scatter", op, input, group);
    return ReduceScatter::apply(input, std::string(op), group);
  }
  const Guard guard;
  return reduce_scatter(input, op, group);
}

at::Tensor all_to_all_single_autograd(const at::Tensor& input, OptionalSplits output_splits,
                                      OptionalSplits input_splits, const std::string& group) {
  if (needs_gradient(input)) {
    return AllToAll::apply(input, AllToAll::copy(output_splits), AllToAll::copy(input_splits),
                           group);
  }
  const Guard guard;
  return all_to_all_single(input, output_splits, input_splits, group);
}

// For operators without a derivative.
void without_gradient(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  std::string group;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "group_name") group = (*stack)[first + i].toStringRef();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    check_for_all(tensor, group, [&] {
      TORCH_CHECK(!needs_gradient(tensor), op.schema().name(), ": '", arguments[i].name(),
                  "' needs a gradient, which this operator has not; call it under torch.no_grad()");
    });
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite() && !tensor.is_inference()) {
      torch::autograd::impl::bump_version(tensor);
    }
  }
  const Guard guard;
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(dda, Autograd, m) {
  m.impl("all_reduce", all_reduce_autograd);
  m.impl("all_gather", all_gather_autograd);
  m.impl("reduce_scatter", reduce_scatter_autograd);
  m.impl("all_to_all_single", all_to_all_single_autograd);
  for (const char* name :
       {"all_reduce.out", "all_reduce_", "reduce_", "broadcast_", "all_gather.out",
        "reduce_scatter.out", "gather", "scatter_", "all_to_all_single.out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_gradient>());
  }
}

}  // namespace
}  // namespace dda
