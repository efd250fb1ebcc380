#include "memory/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "dda/error.h"

namespace dda {
namespace {

constexpr int kMaxFds = 2;

Error system_error(const std::string& what) {
  return Error(Error::Kind::kSystem, what + ": " + std::strerror(errno));
}

Error overdue(const char* for_what) {
  return Error(Error::Kind::kTimeout, std::string("timed out while waiting for ") + for_what);
}

socklen_t fill_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;  // the leading zero byte of sun_path says: abstract
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void wait_readable(const Fd& socket, Deadline deadline, const char* for_what) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd poll_fd = {socket.get(), POLLIN, 0};
    const int limit =
        left.count() < 0 ? 0 : static_cast<int>(std::min<int64_t>(left.count(), 1000));
    const int ready = ::poll(&poll_fd, 1, limit);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw system_error("cannot wait for a peer");
    if (left.count() <= 0) throw overdue(for_what);
  }
}

// Of a connected socket; those that the peer had when it began to listen, or to connect.
ucred credentials_of(const Fd& socket) {
  ucred credentials = {0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  socklen_t length = sizeof(credentials);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return credentials;
}

}  // namespace

pid_t peer_pid(const Fd& socket) { return credentials_of(socket).pid; }

Fd listen_on(const std::string& name, int backlog) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = fill_address(name, address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    throw system_error("cannot listen on a Unix socket");
  }
  return fd;
}

Fd connect_to(const std::string& name, Deadline deadline) {
  sockaddr_un address;
  const socklen_t length = fill_address(name, address);
  for (;;) {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) throw system_error("cannot make a Unix socket");
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
    const bool busy = errno == EAGAIN || errno == EINTR;  // the backlog is full
    if (!busy || std::chrono::steady_clock::now() > deadline) {
      throw system_error("cannot connect to its Unix socket");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Fd accept_from(const Fd& listener, Deadline deadline) {
  const char* const what = "a peer to connect";
  for (;;) {
    // Strangers who connect again and again must not keep this rank past its time.
    if (std::chrono::steady_clock::now() >= deadline) throw overdue(what);
    wait_readable(listener, deadline, what);
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      const bool gone_again = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (!gone_again) throw system_error("cannot accept a peer");
      continue;
    }
    if (credentials_of(fd).uid == ::geteuid()) return fd;
  }
}

void send_packet(const Fd& socket, const void* data, size_t bytes, const int* fds, int n) {
  iovec io = {const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(n * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(n * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds, n * sizeof(int));
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
    throw system_error("cannot hand over shared memory");
  }
}

void receive_packet(const Fd& socket, void* data, size_t bytes, Fd* fds, int n, Deadline deadline) {
  wait_readable(socket, deadline, "a peer's shared memory");
  iovec io = {data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  int received[kMaxFds];
  int count = 0;
  const cmsghdr* header = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    count = static_cast<int>((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(received, CMSG_DATA(header), count * sizeof(int));
  }
  for (int i = 0; i < count; ++i) {  // own them before anything can throw
    Fd owned(received[i]);
    if (i < n) fds[i] = std::move(owned);
  }
  const bool whole = got == static_cast<ssize_t>(bytes) && count == n &&
                     (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole)
    throw Error(Error::Kind::kSystem, "a peer went away or sent a packet of another kind");
}

}  // namespace dda
