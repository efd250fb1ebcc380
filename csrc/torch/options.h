// What a user may set when a group is made: init_process_group("dda", pg_options=dda.Options(...)).
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>

namespace dda {

struct DdaOptions final : c10d::Backend::Options {
  explicit DdaOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : Options("dda", timeout) {}

  // Virtual in the base class from torch 2.14 on.
  c10::intrusive_ptr<Options> clone() const { return c10::make_intrusive<DdaOptions>(*this); }

  int64_t slot_bytes = 0;     // of each staging slot; 0: DDA_SLOT_BYTES
  uint32_t calls_before = 0;  // where call counters begin; tests begin at their wrap
  int64_t threads = 0;        // that a large call may use; 0: torch's, at most one a core
};

}  // namespace dda
