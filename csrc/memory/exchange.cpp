#include "memory/exchange.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/env.h"
#include "memory/process.h"
#include "memory/socket.h"

namespace dda {
namespace {

constexpr uint32_t kVersion = 1;
// How long this rank waits for a key before it asks whether the group is still whole.
constexpr milliseconds kSlice{100};

// What a rank publishes about itself. Fixed and length-checked: whoever can write to the store can
// write this, so nothing in it is trusted beyond its bounds.
struct Address {
  uint32_t version;
  int32_t offer;
  uint64_t nonce[2];
  char socket[48];
  char terms[256];
};

// The packet that goes with the descriptors.
struct Hello {
  uint64_t nonce[2];
  int32_t rank;
  LifeId life;
  uint64_t address_of_life;  // in the sender's process, where `life` is to be read
};

template <class Record>
std::string encode(const Record& record) {
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

template <class Record>
Record decode(const std::string& bytes, int rank) {
  if (bytes.size() != sizeof(Record)) {
    throw Error(Error::Kind::kSystem,
                "rendezvous: rank " + std::to_string(rank) + " published " +
                    std::to_string(bytes.size()) + " bytes, expected " +
                    std::to_string(sizeof(Record)) + "; do all ranks run the same version of dda?",
                -1);
  }
  Record record;
  std::memcpy(&record, bytes.data(), sizeof(record));
  return record;
}

template <size_t kSize>
void set_text(char (&to)[kSize], const std::string& text) {
  std::strncpy(to, text.c_str(), kSize - 1);
  to[kSize - 1] = '\0';
}

template <size_t kSize>
std::string get_text(const char (&from)[kSize]) {
  return std::string(from, ::strnlen(from, kSize));
}

std::string random_name() {
  uint64_t bits[2];
  fill_random(bits, sizeof(bits));
  char name[48];
  std::snprintf(name, sizeof(name), "dda-%016llx%016llx", static_cast<unsigned long long>(bits[0]),
                static_cast<unsigned long long>(bits[1]));
  return name;
}

// Whether this process can read that of `hello`, and it is the right one: a mark that no two
// processes share is read back. A host may forbid it (ptrace scope, seccomp, a process that may not
// be dumped), and a pid may mean another process here.
bool can_read_process(pid_t pid, const Hello& hello) {
  LifeId found = {};
  return env().single_copy_bytes != 0 && pid > 0 &&
         read_process(pid, hello.address_of_life, &found, sizeof(found)) == 0 &&
         std::memcmp(&found, &hello.life, sizeof(found)) == 0;
}

}  // namespace

struct Exchange::Verdict {
  uint32_t failed;
  int32_t kind;
  int32_t peer;
  uint32_t can_read;
  char why[240];
};

Exchange::Exchange(Bootstrap& store, int rank, int size, milliseconds timeout,
                   const std::string& terms, int offer, std::function<bool()> is_whole)
    : store_(store),
      rank_(rank),
      size_(size),
      timeout_(std::min(timeout, kLongestTimeout)),
      is_whole_(std::move(is_whole)),
      offer_(offer),
      least_offer_(offer) {
  // A store may have served an earlier group: each rank counts how often it has come here, so that
  // no key is used twice.
  prefix_ = "dda/" + std::to_string(store_.add("dda/joined/" + std::to_string(rank), 1)) + "/";
  addresses_.resize(size);
  sockets_.resize(size);
  std::string problem;
  const std::string name = random_name();
  try {
    listener_ = listen_on(name, size_);
  } catch (const Error& error) {
    problem = error.what();
  }
  publish_address(problem.empty() ? name : "", terms);
  learn_addresses(terms);
  attempt([&] {
    if (!problem.empty()) throw Error(Error::Kind::kSystem, problem);
    connect_to_lower();
  });
}

std::string Exchange::key(const char* what, int rank) const {
  return prefix_ + what + "/" + std::to_string(rank);
}

std::string Exchange::hear(const char* what, int rank) {
  const auto where = [&] { return "rendezvous on rank " + std::to_string(rank_) + ": rank "; };
  const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  for (milliseconds left = timeout_; left.count() > 0;) {
    try {
      return store_.get(key(what, rank), std::min(left, kSlice));
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::kTimeout) throw;
    }
    if (is_whole_ && !is_whole_()) {
      throw Error(Error::Kind::kAborted,
                  where() + std::to_string(rank) + " was awaited when the group broke", rank);
    }
    left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  }
  throw Error(Error::Kind::kTimeout,
              where() + std::to_string(rank) + " did not come within " +
                  std::to_string(timeout_.count()) + " ms; look there, or raise the timeout",
              rank);
}

void Exchange::publish_address(const std::string& name, const std::string& terms) {
  Address mine = {};
  mine.version = kVersion;
  mine.offer = offer_;
  fill_random(mine.nonce, sizeof(mine.nonce));
  set_text(mine.socket, name);
  set_text(mine.terms, terms);
  store_.set(key("address", rank_), encode(mine));
}

void Exchange::learn_addresses(const std::string& terms) {
  for (int r = 0; r < size_; ++r) {
    const Address theirs = decode<Address>(hear("address", r), r);
    if (theirs.version != kVersion) {
      throw Error(Error::Kind::kMismatch, "rendezvous: rank " + std::to_string(r) +
                                              " runs another version of dda than rank " +
                                              std::to_string(rank_) +
                                              "; install the same one everywhere");
    }
    if (r == 0) std::memcpy(nonce_, theirs.nonce, sizeof(nonce_));
    least_offer_ = std::min(least_offer_, theirs.offer);
    addresses_[r] = get_text(theirs.socket);
    const std::string their_terms = get_text(theirs.terms);
    if (their_terms != terms.substr(0, sizeof(theirs.terms) - 1)) {
      throw Error(Error::Kind::kMismatch,
                  "rendezvous: ranks disagree on their settings: rank " + std::to_string(r) +
                      " has '" + their_terms + "', rank " + std::to_string(rank_) + " has '" +
                      terms + "'; set the same DDA_* variables and options on all ranks");
    }
  }
}

void Exchange::connect_to_lower() {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  for (int r = 0; r < rank_; ++r) {
    if (addresses_[r].empty()) continue;  // its own verdict will say why
    try {
      sockets_[r] = connect_to(addresses_[r], deadline);
    } catch (const Error& error) {
      throw Error(Error::Kind::kSystem,
                  "rank " + std::to_string(rank_) + " cannot share memory with rank " +
                      std::to_string(r) + " (another host or network namespace?): " + error.what(),
                  r);
    }
  }
}

void Exchange::agree(const Error* error) {
  Verdict mine = {};
  mine.can_read = can_read_;
  if (error != nullptr) {
    mine.failed = 1;
    mine.kind = static_cast<int32_t>(error->kind());
    mine.peer = error->peer();
    set_text(mine.why, error->what());
  }
  const std::string round = "verdict" + std::to_string(round_++);
  store_.set(key(round.c_str(), rank_), encode(mine));
  for (int r = 0; r < size_; ++r) {
    const Verdict theirs = decode<Verdict>(hear(round.c_str(), r), r);
    can_all_read_ &= theirs.can_read != 0;
    if (theirs.failed == 0) continue;
    std::string why = get_text(theirs.why);
    if (why.rfind("dda: ", 0) == 0) why = why.substr(5);
    throw Error(static_cast<Error::Kind>(theirs.kind), "rank " + std::to_string(r) + ": " + why,
                theirs.peer);
  }
}

void Exchange::hand_over(std::vector<Neighbour>& to, size_t bytes, Segment mine) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  const Life& life = Life::mine();
  const auto send_mine = [&](const Fd& socket) {
    const Hello hello = {
        {nonce_[0], nonce_[1]}, rank_, life.id(), reinterpret_cast<uint64_t>(&life.id())};
    const int fds[2] = {mine.fd(), life.fd()};
    send_packet(socket, &hello, sizeof(hello), fds, 2);
  };
  const auto receive_theirs = [&](const Fd& socket, int expected) {
    Hello hello;
    Fd fds[2];
    receive_packet(socket, &hello, sizeof(hello), fds, 2, deadline);
    const bool fits =
        expected < 0 ? hello.rank > rank_ && hello.rank < size_ : hello.rank == expected;
    const bool ours = std::memcmp(hello.nonce, nonce_, sizeof(nonce_)) == 0 && fits &&
                      to[hello.rank].segment.data() == nullptr;
    if (!ours) throw Error(Error::Kind::kSystem, "rendezvous: a stranger connected");
    to[hello.rank].segment = Segment::open(std::move(fds[0]), bytes);
    to[hello.rank].segment.close_fd();
    to[hello.rank].life = Life::of(hello.life, std::move(fds[1]));
    to[hello.rank].pid = peer_pid(socket);
    can_read_ &= can_read_process(to[hello.rank].pid, hello);
    return hello.rank;
  };
  // Each waits for lower ranks only until it has traded with them all, so never in a circle. Pair
  // by pair, since a system limits how many descriptors may be on their way.
  for (int r = 0; r < rank_; ++r) {
    send_mine(sockets_[r]);
    receive_theirs(sockets_[r], r);
  }
  for (int missing = size_ - 1 - rank_; missing > 0; --missing) {
    const Fd caller = accept_from(listener_, deadline);
    receive_theirs(caller, -1);
    send_mine(caller);
  }
  mine.close_fd();
  to[rank_].segment = std::move(mine);
}

}  // namespace dda
