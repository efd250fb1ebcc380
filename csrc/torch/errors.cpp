#include "torch/errors.h"

#include <stdexcept>

namespace dda {
namespace {

namespace py = pybind11;

// They live as long as the process: an error may be raised while the interpreter goes down.
PyObject* error_type = nullptr;
PyObject* peer_lost_type = nullptr;
PyObject* timeout_type = nullptr;

PyObject* make_type(py::module_& module, const char* name, PyObject* base, const char* doc) {
  const std::string qualified = std::string("dda.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base, nullptr);
  if (type == nullptr) throw py::error_already_set();
  module.add_object(name, py::handle(type));
  return type;
}

}  // namespace

PyObject* RaisedError::python_type() {
  switch (kind_) {
    case Error::Kind::kPeerLost:
      return peer_lost_type;
    case Error::Kind::kTimeout:
      return timeout_type;
    default:
      return error_type;
  }
}

void bind_errors(py::module_& module) {
  const py::object base = py::module_::import("torch.distributed").attr("DistBackendError");
  error_type = make_type(module, "Error", base.ptr(),
                         "A collective failed; the message names the rank to blame.");
  peer_lost_type = make_type(module, "PeerLost", error_type, "A rank died or left the group.");
  timeout_type = make_type(module, "Timeout", error_type, "A rank did not arrive in time.");
  // For functions that are bound here and call the engine directly.
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(RaisedError(error).python_type(), error.what());
    }
  });
}

}  // namespace dda
