#include "engine/failpoint.h"

#if defined(DDA_FAILPOINTS)

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/env.h"

namespace dda {
namespace {

struct Failpoint {
  std::string name;
  int rank = -1;
  int hit = 0;
  std::string action;
};

Failpoint parse() {
  Failpoint point;
  const std::string& all = env().failpoint;
  const size_t a = all.find(':');
  const size_t b = all.find(':', a + 1);
  const size_t c = all.find(':', b + 1);
  if (c == std::string::npos) return point;
  point.name = all.substr(0, a);
  point.rank = std::atoi(all.substr(a + 1, b - a - 1).c_str());
  point.hit = std::atoi(all.substr(b + 1, c - b - 1).c_str());
  point.action = all.substr(c + 1);
  return point;
}

std::atomic<int> own_rank{-1};
std::atomic<int> hits{0};

}  // namespace

void set_failpoint_rank(int rank) { own_rank.store(rank); }

void reach_failpoint(const char* name) {
  static const Failpoint point = parse();
  if (point.rank != own_rank.load() || point.name != name) return;
  if (hits.fetch_add(1) + 1 != point.hit) return;
  if (point.action == "kill") ::raise(SIGKILL);
  if (point.action == "stop") ::raise(SIGSTOP);
  if (point.action == "exit") ::_exit(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(point.action.c_str())));
}

}  // namespace dda

#endif
