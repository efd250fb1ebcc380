// The Python module dda._C. dda/_C.pyi documents it for Python.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/extension.h>

#include <chrono>
#include <string>
#include <utility>

#include "engine/floors.h"
#include "torch/backend.h"
#include "torch/create.h"
#include "torch/environment.h"
#include "torch/errors.h"
#include "torch/fallback.h"
#include "torch/measure.h"
#include "torch/null_backend.h"
#include "torch/options.h"

namespace dda {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_options(py::module_& m) {
  py::class_<DdaOptions, c10::intrusive_ptr<DdaOptions>, c10d::Backend::Options>(m, "Options")
      .def(py::init([](std::chrono::milliseconds timeout, int64_t slot_bytes, int64_t threads,
                       uint32_t calls_before) {
             TORCH_CHECK_VALUE(slot_bytes >= 0 && threads >= 0,
                               "dda.Options: slot_bytes and threads must not be negative");
             auto options = c10::make_intrusive<DdaOptions>(timeout);
             options->slot_bytes = slot_bytes;
             options->threads = threads;
             options->calls_before = calls_before;
             return options;
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("slot_bytes") = 0,
           py::arg("threads") = 0, py::arg("calls_before") = 0)
      .def_readonly("calls_before", &DdaOptions::calls_before)
      .def_readonly("slot_bytes", &DdaOptions::slot_bytes)
      .def_readonly("threads", &DdaOptions::threads)
      // torch copies the options of a group that it splits.
      .def("__deepcopy__", [](const DdaOptions& self, const py::object&) { return self.clone(); });
}

void bind_backend(py::module_& m) {
  py::class_<DdaBackend, c10::intrusive_ptr<DdaBackend>, c10d::Backend>(m, "DdaBackend")
      .def_property_readonly("options", &DdaBackend::getBackendOptions)
      .def_property_readonly("timeout", [](DdaBackend& self) { return self.group().timeout(); })
      .def_property_readonly("error",
                             [](DdaBackend& self) {
                               const std::string error = self.group().error();
                               return error.empty() ? self.gpu().error() : error;
                             })
      .def_property_readonly("sequence", [](DdaBackend& self) { return self.group().sequence(); })
      .def(
          "abort", [](DdaBackend& self, const std::string& why) { self.abort(why); },
          py::arg("why") = "abort() was called", NoGil())
      .def(
          "refuse",
          [](DdaBackend& self, const std::string& why, bool on_gpu) {
            self.refuse(std::runtime_error(why), on_gpu);
          },
          py::arg("why"), py::arg("on_gpu") = false, NoGil())
      .def(
          "warm_up",
          [](DdaBackend& self, const std::string& device) {
            self.gpu().warm_up(at::Device(device));
          },
          py::arg("device"), NoGil())
      .def("set_timeout", &DdaBackend::setTimeout, py::arg("timeout"), NoGil())
      .def(
          "allocate",
          [](DdaBackend& self, int64_t bytes, const std::string& device) {
            return self.allocate(bytes, at::Device(device));
          },
          py::arg("nbytes"), py::arg("device") = "cpu", NoGil())
      .def(
          "explain",
          [](DdaBackend& self, const std::string& collective, uint64_t nbytes, bool symmetric,
             const std::string& device) {
            const Collective what = parse_collective(collective);
            Explanation e = at::Device(device).is_cuda()
                                ? self.gpu().explain(what, nbytes)
                                : self.group().explain(what, nbytes, symmetric);
            return std::make_tuple(std::move(e.algorithm), std::move(e.reason), e.blocks,
                                   e.chunk_bytes);
          },
          py::arg("collective"), py::arg("nbytes"), py::arg("symmetric") = false,
          py::arg("device") = "cpu")
      .def(
          "engine_time",
          [](DdaBackend& self, const std::string& collective, uint64_t nbytes, int iterations,
             const std::string& dtype, const std::string& algorithm, bool symmetric) {
            Measurement what;
            what.collective = parse_collective(collective);
            what.bytes = nbytes;
            what.iterations = iterations;
            what.dtype = parse_dtype(dtype);
            what.algorithm = parse_algorithm(algorithm);
            what.symmetric = symmetric;
            return measure(self.group(), what);
          },
          py::arg("collective"), py::arg("nbytes"), py::arg("iterations"),
          py::arg("dtype") = "float32", py::arg("algorithm") = "auto", py::arg("symmetric") = false,
          NoGil());

  py::class_<FallbackBackend, c10::intrusive_ptr<FallbackBackend>, c10d::Backend>(m,
                                                                                  "FallbackBackend")
      .def_property_readonly("options", &FallbackBackend::getBackendOptions)
      .def_property_readonly("reason", &FallbackBackend::reason)
      .def("set_timeout", &FallbackBackend::setTimeout, py::arg("timeout"), NoGil());

  m.def("create_backend", &create_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
        py::arg("options"), NoGil());
}

void bind_measurements(py::module_& m) {
  m.def("floors", [] {
    Floors floors;
    {
      const py::gil_scoped_release without_gil;
      floors = measure_floors();
    }
    py::dict result;
    result["flag_us"] = floors.flag_us;
    result["read_64k_us"] = floors.read_64k_us;
    result["add_64m_us"] = floors.add_64m_us;
    return result;
  });
}

void bind_null_backend(py::module_& m) {
  py::class_<NullBackend, c10::intrusive_ptr<NullBackend>, c10d::Backend>(m, "NullBackend")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
}

}  // namespace
}  // namespace dda

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::module_::import("torch.distributed");  // binds the base classes
  dda::bind_errors(m);
  dda::bind_options(m);
  dda::bind_backend(m);
  dda::bind_null_backend(m);
  dda::bind_measurements(m);
  dda::bind_environment(m);
}
