// Whether another process is alive, without its pid (which may be reused, or of another namespace).
//
// Every process holds a record lock on a memfd of its own, which it hands to its peers. The kernel
// drops the lock when the process ends, however it ends, and a forked child does not inherit it. A
// process has one such mark, however many groups it is in; peers keep one descriptor a process. (A
// lock of the open file description would not do: children inherit it, and so would peers.)
#pragma once

#include <cstdint>
#include <memory>

#include "memory/segment.h"

namespace dda {

struct LifeId {
  uint64_t word[2];
  bool operator<(const LifeId& other) const {
    return word[0] != other.word[0] ? word[0] < other.word[0] : word[1] < other.word[1];
  }
};

class Life {
 public:
  // This process's own mark.
  static const Life& mine();
  // A peer's, by the descriptor that it handed over; shared by all groups. The peer may be another
  // thread of this process.
  static std::shared_ptr<const Life> of(const LifeId& id, Fd fd);

  const LifeId& id() const { return id_; }
  int fd() const { return fd_.get(); }
  bool is_alive() const;

  Life(const LifeId& id, Fd fd, bool is_mine = false)
      : id_(id), fd_(std::move(fd)), is_mine_(is_mine) {}

 private:
  LifeId id_;
  Fd fd_;
  bool is_mine_;
};

// Fills `bytes` bytes with random bits of the kernel.
void fill_random(void* to, size_t bytes);

// Grows by one in every forked child, so that a group can tell that it was inherited.
uint32_t fork_generation();

}  // namespace dda
