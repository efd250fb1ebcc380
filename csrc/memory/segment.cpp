#include "memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dda/error.h"

namespace dda {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void throw_errno(Error::Kind kind, const std::string& what) {
  throw Error(kind, what + ": " + std::strerror(errno));
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Segment Segment::create(size_t bytes, const std::string& label) {
  Fd fd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno(Error::Kind::kSystem, "cannot create shared memory (memfd_create)");
  // posix_fallocate, not ftruncate: memory that is missing must be missed now, not as a SIGBUS.
  int error = 0;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) {
    errno = error;
    throw_errno(Error::Kind::kMemory, "no room for " + std::to_string(bytes) +
                                          " bytes of shared memory; free memory, raise the memory "
                                          "limit, or set a smaller DDA_SLOT_BYTES");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw_errno(Error::Kind::kSystem, "cannot seal shared memory");
  }
  unsigned char* data = map(fd.get(), bytes);
  return Segment(std::move(fd), data, bytes, true);
}

Segment Segment::open(Fd fd, size_t bytes) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw_errno(Error::Kind::kSystem, "cannot stat a segment");
  if (static_cast<size_t>(status.st_size) != bytes) {
    throw Error(Error::Kind::kSystem, "a peer's segment has " + std::to_string(status.st_size) +
                                          " bytes, expected " + std::to_string(bytes));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw Error(Error::Kind::kSystem, "a peer's segment is not sealed against resizing");
  }
  unsigned char* data = map(fd.get(), bytes);
  return Segment(std::move(fd), data, bytes, true);
}

Segment Segment::borrow(unsigned char* data, size_t bytes) {
  return Segment(Fd(), data, bytes, false);
}

unsigned char* Segment::map(int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) throw_errno(Error::Kind::kMemory, "cannot map shared memory");
  return static_cast<unsigned char*>(data);
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      owned_(std::exchange(other.owned_, false)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(owned_, other.owned_);
  return *this;
}

Segment::~Segment() {
  if (owned_) ::munmap(data_, bytes_);
}

}  // namespace dda
