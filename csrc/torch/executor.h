// What dda's own operators need of a process group's backend, besides what torch asks for: to run a
// prepared operation in the caller's thread.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>

#include "torch/calls.h"
#include "torch/operation.h"

namespace dda {

class Executor {
 public:
  virtual ~Executor() = default;
  // Returns when the operation is done, after all that were issued before it; on GPUs when it is
  // enqueued on the current stream.
  virtual void execute(const Operation& operation) = 0;
  // Tells the peers that this rank does not make the call that they make, on CPUs or on GPUs; see
  // Group::refuse.
  virtual void refuse(const std::exception& error, bool on_gpu) noexcept = 0;
  virtual calls::Place place() const = 0;
};

// Prepares an operation and executes it; where `prepare` throws, the peers are told.
template <typename Prepare>
void prepare_and_execute(Executor& executor, bool on_gpu, Prepare prepare) {
  std::optional<Operation> operation;
  try {
    operation.emplace(prepare());
  } catch (const std::exception& error) {
    executor.refuse(error, on_gpu);
    throw;
  }
  executor.execute(*operation);
}

}  // namespace dda
