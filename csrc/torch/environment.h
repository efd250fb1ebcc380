// dda._C.describe_env and its kin: the environment variables of csrc/core/env.h, for Python.
#pragma once

#include <torch/extension.h>

namespace dda {

void bind_environment(pybind11::module_& m);

}  // namespace dda
