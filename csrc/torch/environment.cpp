#include "torch/environment.h"

#include <pybind11/stl.h>

#include "core/env.h"

namespace dda {

void bind_environment(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("check_env", &check_env, "What is wrong with this process's environment, or \"\".");
  m.def("env_fingerprint", &fingerprint, "The settings that must agree between ranks.");
  m.def(
      "describe_env",
      [] {
        std::vector<py::dict> list;
        for (const EnvVariable& v : describe_env()) {
          list.push_back(py::dict(py::arg("name") = v.name, py::arg("values") = v.values,
                                  py::arg("default") = v.fallback, py::arg("doc") = v.doc,
                                  py::arg("agreed") = v.agreed));
        }
        return list;
      },
      "One dict for each variable: name, values, default, doc, agreed.");
}

}  // namespace dda
