// How the ranks of a group come to map each other's memory.
//
// Every rank listens on a socket in the abstract namespace of its host, under a random name that it
// publishes in the store. For each pair the higher rank connects to the lower, which
// checks the caller's credentials; both hand over descriptors. A rank that cannot be reached so is
// not on this host. Every verdict goes through the store, so that all ranks end alike: either each
// has a mapping of every peer's segment, or all throw the same error.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dda/group.h"
#include "memory/life.h"
#include "memory/segment.h"

namespace dda {

struct Neighbour {
  Segment segment;
  std::shared_ptr<const Life> life;  // nullptr for this rank itself
  pid_t pid = 0;                     // 0 for this rank itself, or where the peer has none here
};

class Exchange {
 public:
  // `terms` is what must be equal on all ranks; a difference is an error that shows both sides.
  // `offer` is a number of which the least over all ranks will count. While this rank waits for a
  // peer it asks `is_whole` now and then, and throws kAborted if that says no.
  Exchange(Bootstrap& store, int rank, int size, milliseconds timeout, const std::string& terms,
           int offer = 0, std::function<bool()> is_whole = nullptr);

  int least_offer() const { return least_offer_; }

  // Random bits that all ranks of this incarnation share and nobody else knows.
  const uint64_t* nonce() const { return nonce_; }

  // Trades segments, all of `bytes`. Element r of the result is rank r's segment, mapped here. An
  // error of `make`, which makes this rank's, or of `verify(neighbours)`, which looks at them all,
  // is thrown by every rank.
  // Then says whether every rank has found that it can read the memory of every other's process.
  bool can_all_read() const { return can_all_read_; }

  template <class Make, class Verify>
  std::vector<Neighbour> trade(size_t bytes, Make make, Verify verify) {
    Segment mine;
    attempt([&] { mine = make(); });
    std::vector<Neighbour> all(size_);
    attempt([&] {
      hand_over(all, bytes, std::move(mine));
      verify(all);
    });
    return all;
  }

  // Does `step` on every rank and returns when all have done it; an error of any is thrown by all.
  template <class Step>
  void attempt(Step step) {
    try {
      step();
    } catch (const Error& error) {
      agree(&error);
      throw;  // not reached: agree has thrown this error or a lower rank's
    }
    agree(nullptr);
  }

 private:
  struct Verdict;

  void agree(const Error* error);
  void publish_address(const std::string& name, const std::string& terms);
  void learn_addresses(const std::string& terms);
  void connect_to_lower();
  void hand_over(std::vector<Neighbour>& to, size_t bytes, Segment mine);
  std::string key(const char* what, int rank) const;
  std::string hear(const char* what, int rank);

  Bootstrap& store_;
  int rank_, size_;
  milliseconds timeout_;
  std::function<bool()> is_whole_;
  std::string prefix_;
  int round_ = 0;
  int offer_;
  int least_offer_;
  bool can_read_ = true;      // this rank all others
  bool can_all_read_ = true;  // every rank
  uint64_t nonce_[2] = {0, 0};
  Fd listener_;
  std::vector<std::string> addresses_;
  std::vector<Fd> sockets_;
};

}  // namespace dda
