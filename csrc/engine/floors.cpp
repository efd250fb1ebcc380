#include "engine/floors.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "core/env.h"
#include "device/cpu_ops.h"
#include "engine/watch.h"

namespace dda {
namespace {

constexpr int kRounds = 15;

struct alignas(128) Flag {
  std::atomic<uint64_t> value{0};
};

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double>& v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

// Moves the calling thread to the i-th of the cores that it may use.
void pin_to(int i) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || i-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one);
    return;
  }
}

// Runs body(0) and body(1) on two cores at once.
template <class Body>
void on_two_cores(Body body) {
  std::thread first([&] { pin_to(0), body(0); });
  std::thread second([&] { pin_to(1), body(1); });
  first.join();
  second.join();
}

// Waits until `flag` is `value`. The other thread runs the same number of steps, so it comes.
void await(const Flag& flag, uint64_t value) {
  for (uint64_t polls = 0; flag.value.load(std::memory_order_acquire) < value; ++polls) {
    if (polls % 100'000 == 99'999) ::sched_yield();
  }
}

double measure_flag() {
  constexpr uint64_t kTrips = 20'000;
  Flag flags[2];
  std::vector<double> times;
  on_two_cores([&](int me) {
    uint64_t k = 0;
    for (int round = 0; round < kRounds; ++round) {
      const Clock::time_point begin = Clock::now();
      for (uint64_t i = 0; i < kTrips; ++i) {
        ++k;
        if (me == 1) await(flags[0], k);
        flags[me].value.store(k, std::memory_order_release);
        if (me == 0) await(flags[1], k);
      }
      if (me == 0) times.push_back(microseconds_since(begin) / kTrips / 2);
    }
  });
  return median(times);
}

double measure_read() {
  constexpr size_t kBytes = 64 << 10;
  std::vector<unsigned char> source(kBytes), target(kBytes);
  Flag flags[2];
  std::vector<double> times;
  const CpuOps& ops = *find_cpu_ops(env().isa.c_str());
  on_two_cores([&](int me) {
    for (uint64_t k = 1; k <= 100 * kRounds; ++k) {
      if (me == 0) {
        std::memset(source.data(), static_cast<int>(k), kBytes);
        flags[0].value.store(k, std::memory_order_release);
        await(flags[1], k);
      } else {
        await(flags[0], k);
        const Clock::time_point begin = Clock::now();
        ops.copy(target.data(), source.data(), kBytes);
        times.push_back(microseconds_since(begin));
        flags[1].value.store(k, std::memory_order_release);
      }
    }
  });
  return median(times);
}

double measure_add() {
  constexpr size_t kCount = 16 << 20;
  const std::vector<float> a(kCount, 1.0f), b(kCount, 2.0f);
  std::vector<float> sum(kCount, 0.0f);
  const void* const sources[2] = {a.data(), b.data()};
  const ReduceFn add =
      find_cpu_ops(env().isa.c_str())
          ->reduce[static_cast<int>(DType::kFloat32)][static_cast<int>(ReduceOp::kSum)];
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point begin = Clock::now();
    add(sum.data(), sources, 2, kCount);
    times.push_back(microseconds_since(begin));
  }
  return median(times);
}

}  // namespace

Floors measure_floors() {
  if (find_cpu_ops(env().isa.c_str()) == nullptr) {
    throw Error(Error::Kind::kInvalid, "DDA_ISA=" + env().isa + ": this CPU or build lacks it");
  }
  return {measure_flag(), measure_read(), measure_add()};
}

}  // namespace dda
