// Makes the backend of a group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch/options.h"

namespace dda {

// Collective over the ranks of the group: `store` is theirs alone. Where all ranks share memory
// the result is a DdaBackend, and where some do not, on every rank, a FallbackBackend. Throws
// RaisedError.
c10::intrusive_ptr<c10d::Backend> create_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size,
                                                 const c10::intrusive_ptr<DdaOptions>& options);

}  // namespace dda
