// The environment variables that dda reads at run time: this struct holds all of them, and nothing
// else in dda calls getenv. They are parsed once, at first use, and strictly: an unknown DDA_*
// variable or a value out of range makes `check_env` return a message, with which the creation of a
// group fails. The table in docs/environment.md is made from `describe_env`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dda {

struct Env {
  int64_t slot_bytes;             // DDA_SLOT_BYTES
  int64_t flat_max_bytes;         // DDA_FLAT_MAX_BYTES
  int64_t single_copy_bytes;      // DDA_SINGLE_COPY_BYTES
  int64_t spin;                   // DDA_SPIN
  std::string isa;                // DDA_ISA
  std::string failpoint;          // DDA_FAILPOINT
  int64_t early_launch;           // DDA_EARLY_LAUNCH, 0 or 1
  int64_t disable_shared_memory;  // DDA_DISABLE_SHARED_MEMORY, 0 or 1
};

struct EnvVariable {
  std::string name;
  std::string values;    // which are allowed, in words
  std::string fallback;  // the default
  std::string doc;
  bool agreed;  // must be the same on every rank of a group
};

// The values in force; a variable whose value is bad has its default.
const Env& env();

// What is wrong with the environment of this process, or "".
std::string check_env();

// The values that must agree between ranks, such as "DDA_SLOT_BYTES=262144 …". Two ranks whose
// fingerprints differ must not form a group.
std::string fingerprint();

std::vector<EnvVariable> describe_env();

}  // namespace dda
