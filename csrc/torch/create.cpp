#include "torch/create.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <string>

#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/fallback.h"
#include "torch/parallel.h"
#include "torch/store_bootstrap.h"

namespace dda {
namespace {

namespace py = pybind11;

// Through Python, since gloo's own headers, which its class needs, are not part of torch.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("torch.distributed").attr("ProcessGroupGloo");
  return type(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
}

c10::intrusive_ptr<c10d::Backend> fall_back(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const c10::intrusive_ptr<DdaOptions>& options,
                                            const std::string& why) {
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  return c10::make_intrusive<FallbackBackend>(make_gloo(prefixed, rank, size, options->timeout),
                                              options, why);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> create_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size,
                                                 const c10::intrusive_ptr<DdaOptions>& options) {
  GroupOptions wanted;
  wanted.rank = rank;
  wanted.size = size;
  wanted.timeout = options->timeout;
  wanted.slot_bytes = static_cast<size_t>(options->slot_bytes);
  wanted.threads = options->threads > 0 ? static_cast<int>(options->threads) : threads_for(size);
  wanted.parallel = parallel_over_torch;
  try {
    auto group = Group::create(std::make_shared<StoreBootstrap>(store), wanted);
    return c10::make_intrusive<DdaBackend>(std::move(group),
                                           make_gpu_side(store, rank, size, options), options);
  } catch (const Error& error) {
    // A rank out of reach: every rank has caught the same.
    if (error.kind() != Error::Kind::kSystem || error.peer() < 0) throw RaisedError(error);
    return fall_back(store, rank, size, options, error.what());
  }
}

}  // namespace dda
