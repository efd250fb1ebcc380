// One direction of a mailbox: a ring of bytes with one writer and one reader. Both counters only
// grow; each side releases its own after it has moved bytes and acquires the other's before.
#pragma once

#include <algorithm>
#include <cstring>

#include "memory/layout.h"

namespace dda {

class Ring {
 public:
  Ring(Mailbox& mailbox, uint64_t capacity)
      : mailbox_(mailbox),
        data_(reinterpret_cast<unsigned char*>(&mailbox) + sizeof(Mailbox)),
        capacity_(capacity) {}

  uint64_t room() const {
    return capacity_ - used(mailbox_.written.load(std::memory_order_relaxed),
                            mailbox_.read.load(std::memory_order_acquire));
  }
  uint64_t available() const {
    return used(mailbox_.written.load(std::memory_order_acquire),
                mailbox_.read.load(std::memory_order_relaxed));
  }

  void write(const void* from, uint64_t bytes) {
    const uint64_t at = mailbox_.written.load(std::memory_order_relaxed);
    const uint64_t first = std::min(bytes, capacity_ - at % capacity_);
    std::memcpy(data_ + at % capacity_, from, first);
    std::memcpy(data_, static_cast<const unsigned char*>(from) + first, bytes - first);
    mailbox_.written.store(at + bytes, std::memory_order_release);
  }
  // `to` nullptr: the bytes are dropped.
  void read(void* to, uint64_t bytes) {
    const uint64_t at = mailbox_.read.load(std::memory_order_relaxed);
    const uint64_t first = std::min(bytes, capacity_ - at % capacity_);
    if (to != nullptr) {
      std::memcpy(to, data_ + at % capacity_, first);
      std::memcpy(static_cast<unsigned char*>(to) + first, data_, bytes - first);
    }
    mailbox_.read.store(at + bytes, std::memory_order_release);
  }

 private:
  // The other side's counter is not to be trusted beyond the ring's bounds.
  uint64_t used(uint64_t written, uint64_t read) const {
    return std::min(written - read, capacity_);
  }

  Mailbox& mailbox_;
  unsigned char* const data_;
  const uint64_t capacity_;
};

}  // namespace dda
