// Unix sockets of the abstract namespace, with descriptors as cargo and an end to every wait.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "memory/segment.h"

namespace dda {

using Deadline = std::chrono::steady_clock::time_point;

// Listens under `name` for at most `backlog` callers at once.
Fd listen_on(const std::string& name, int backlog);
// Throws Error(kSystem) if nobody listens there.
Fd connect_to(const std::string& name, Deadline deadline);
// Waits for a caller of the same user; others are turned away. Throws Error(kTimeout).
Fd accept_from(const Fd& listener, Deadline deadline);

// Sends one packet with up to two descriptors.
void send_packet(const Fd& socket, const void* data, size_t bytes, const int* fds, int n);
// The process at the other end, as seen from this process's pid namespace; 0 if it has no pid
// there.
pid_t peer_pid(const Fd& socket);
// Receives one packet of exactly `bytes` and exactly `n` descriptors. Throws Error(kTimeout) or,
// where the peer has gone or sent something else, Error(kSystem).
void receive_packet(const Fd& socket, void* data, size_t bytes, Fd* fds, int n, Deadline deadline);

}  // namespace dda
