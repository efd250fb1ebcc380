// The engine's errors on their way to Python.
//
// They leave through torch's own bindings as often as through ours, and torch turns every exception
// that it does not know into a bare RuntimeError. It does know torch::PyTorchError, which carries
// the Python type to raise; so that is what the engine's errors become where they enter torch.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <string>

#include "dda/error.h"

namespace dda {

class RaisedError final : public torch::PyTorchError {
 public:
  explicit RaisedError(const Error& error) : PyTorchError(error.what()), kind_(error.kind()) {}
  Error::Kind kind() const { return kind_; }
  PyObject* python_type() override;

 private:
  Error::Kind kind_;
};

// Calls `body` and lets its Error out as a RaisedError.
template <typename Body>
decltype(auto) raising(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw RaisedError(error);
  }
}

// Adds the Python types dda.Error, dda.PeerLost and dda.Timeout to the module.
void bind_errors(pybind11::module_& module);

}  // namespace dda
