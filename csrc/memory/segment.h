// Shared memory without a name: a memfd, sized once and sealed, mapped by its owner and by those to
// whom the descriptor is handed.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace dda {

// A descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class Segment {
 public:
  Segment() = default;
  // A new segment of `bytes` zeros, all of them backed by memory from the start, so that no later
  // access can fail. Throws Error(kMemory) with the bytes needed.
  static Segment create(size_t bytes, const std::string& label);
  // A segment that a peer created. Throws Error(kSystem) if it is not `bytes` long and sealed.
  static Segment open(Fd fd, size_t bytes);
  // Memory that somebody else owns, for ranks that are threads of one process.
  static Segment borrow(unsigned char* data, size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // The mapping outlives the descriptor: once peers have it, it can go.
  void close_fd() { fd_ = Fd(); }

 private:
  Segment(Fd fd, unsigned char* data, size_t bytes, bool owned)
      : fd_(std::move(fd)), data_(data), bytes_(bytes), owned_(owned) {}
  static unsigned char* map(int fd, size_t bytes);

  Fd fd_;
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
  bool owned_ = false;
};

}  // namespace dda
