// Errors that reach the user. Every message names the operation, the rank, the peer where there is
// one, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace dda {

class Error : public std::runtime_error {
 public:
  enum class Kind {
    kInvalid,   // this rank's own arguments make no sense
    kMismatch,  // ranks called different things; no output was written on any rank
    kPeerLost,  // a rank died or closed its group
    kTimeout,   // a rank did not arrive in time
    kAborted,   // the group was aborted or closed on this rank
    kMemory,    // no room for an arena
    kSystem,    // the operating system refused something
  };

  Error(Kind kind, const std::string& message, int peer = -1)
      : std::runtime_error("dda: " + message), kind_(kind), peer_(peer) {}

  Kind kind() const { return kind_; }
  // The rank (in the group) that is to blame, or -1.
  int peer() const { return peer_; }

 private:
  Kind kind_;
  int peer_;
};

}  // namespace dda
