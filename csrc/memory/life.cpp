#include "memory/life.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "dda/error.h"

namespace dda {
namespace {

std::atomic<uint32_t> generation{0};

struct flock whole_file_lock() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

const Life* make_mine() {
  LifeId id;
  fill_random(&id, sizeof(id));
  Fd fd(::memfd_create("dda-life", MFD_CLOEXEC));
  struct flock lock = whole_file_lock();
  if (!fd || ::fcntl(fd.get(), F_SETLK, &lock) != 0) {
    throw Error(Error::Kind::kSystem,
                std::string("cannot mark this process as alive: ") + std::strerror(errno));
  }
  return new Life(id, std::move(fd), true);  // never closed: the mark lasts as long as the process
}

}  // namespace

void fill_random(void* to, size_t bytes) {
  if (::getrandom(to, bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw Error(Error::Kind::kSystem, "no random bytes from the kernel");
  }
}

uint32_t fork_generation() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

const Life& Life::mine() {
  static std::mutex mutex;
  static const Life* life = nullptr;
  static uint32_t made_in = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const uint32_t now = fork_generation();
  if (life == nullptr || made_in != now) {
    life = make_mine();
    made_in = now;
  }
  return *life;
}

std::shared_ptr<const Life> Life::of(const LifeId& id, Fd fd) {
  const Life& own = mine();
  static std::mutex mutex;
  static std::map<LifeId, std::weak_ptr<const Life>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!(id < own.id_) && !(own.id_ < id)) {
    // A process loses its lock on a file when it closes any of its descriptors of that file.
    static auto* const never_closed = new std::vector<Fd>;
    never_closed->push_back(std::move(fd));
    return {&own, [](const Life*) {}};
  }
  for (auto it = known.begin(); it != known.end();) {
    it = it->second.expired() ? known.erase(it) : std::next(it);
  }
  std::weak_ptr<const Life>& entry = known[id];
  std::shared_ptr<const Life> life = entry.lock();
  if (life == nullptr) {
    life = std::make_shared<const Life>(id, std::move(fd));
    entry = life;
  }
  return life;
}

bool Life::is_alive() const {
  if (is_mine_) return true;  // the kernel does not count locks of the one who asks
  struct flock lock = whole_file_lock();
  if (::fcntl(fd_.get(), F_GETLK, &lock) != 0) return true;  // cannot tell: the clock decides
  return lock.l_type != F_UNLCK;
}

}  // namespace dda
