// The engine's protocol with ranks as threads of one process, so that ThreadSanitizer sees both
// sides of every hand-over (it cannot see through mappings of other processes).
//
//   protocol RANKS CALLS SEED [SLOT_BYTES [THREADS [CALLS_BEFORE]]]
//
// CALLS_BEFORE sets the call counter: -3 makes it wrap in the third call.
// Every rank makes the same random sequence of calls, of all collectives, dtypes of 1 to 16 bytes
// and sizes around the slot's, and compares every element that it gets. Exits with 1 on a wrong
// one, with 66 when ThreadSanitizer reports a race.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "engine/cpu_group.h"

namespace dda {
namespace {

using Buffer = std::vector<int32_t>;

// What rank `r` contributes as element `i` of its input in call `k`. Sums stay exact.
int32_t value(int r, uint64_t i, int k) {
  return static_cast<int32_t>((i * 7 + r * 131 + k * 17) % 1000);
}

Buffer input(int r, uint64_t count, int k) {
  Buffer b(count);
  for (uint64_t i = 0; i < count; ++i) b[i] = value(r, i, k);
  return b;
}

struct Rank {
  Group& group;
  int wrong = 0;

  void expect(int32_t got, int32_t wanted, const char* what, int k, uint64_t i) {
    if (got == wanted) return;
    if (wrong++ < 3) {
      std::fprintf(stderr, "rank %d call %d %s [%lu]: got %d, expected %d\n", group.rank(), k, what,
                   static_cast<unsigned long>(i), got, wanted);
    }
  }

  void make_call(int k, std::mt19937& random, uint64_t slot) {
    const int n = group.size();
    const int me = group.rank();
    Call call;
    const Collective kinds[] = {
        Collective::kBarrier,   Collective::kAllReduce, Collective::kReduce,
        Collective::kBroadcast, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kGather,    Collective::kScatter,   Collective::kAllToAll};
    call.collective = kinds[random() % 9];
    call.dtype = DType::kInt32;
    call.root = static_cast<int>(random() % n);
    const uint64_t sizes[] = {0, 1, 3, 17, 48, 200, slot / 4 - 1, slot / 4 + 5, slot + 3, 2 * slot};
    call.count = sizes[random() % 10];
    const bool tree = random() % 2 == 0;
    const bool in_place = random() % 2 == 0;
    const auto pick = random();
    const uint64_t c = call.count;
    const char* const what = name_of(call.collective);
    const auto sum = [&](uint64_t i) {
      int32_t s = 0;
      for (int r = 0; r < n; ++r) s += value(r, i, k);
      return s;
    };
    Buffer in = input(me, c, k), out(c, -1);
    call.in = in.data();
    call.out = out.data();
    switch (call.collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
        call.algorithm = tree ? Algorithm::kTree : Algorithm::kFlat;
        if (in_place) call.out = in.data();
        group.run(call);
        if (call.collective == Collective::kReduce && me != call.root) break;
        for (uint64_t i = 0; i < c; ++i) expect((in_place ? in : out)[i], sum(i), what, k, i);
        break;
      case Collective::kBroadcast:
        group.run(call);
        for (uint64_t i = 0; i < c; ++i) expect(out[i], value(call.root, i, k), what, k, i);
        break;
      case Collective::kAllGather:
      case Collective::kGather:
        out.assign(c * n, -1);
        call.out = out.data();
        group.run(call);
        if (call.collective == Collective::kGather && me != call.root) break;
        for (int r = 0; r < n; ++r) {
          for (uint64_t i = 0; i < c; ++i) expect(out[r * c + i], value(r, i, k), what, k, i);
        }
        break;
      case Collective::kReduceScatter:
      case Collective::kScatter:
        in = input(me, c * n, k);
        call.in = in.data();
        group.run(call);
        for (uint64_t i = 0; i < c; ++i) {
          const bool scatter = call.collective == Collective::kScatter;
          expect(out[i], scatter ? value(call.root, me * c + i, k) : sum(me * c + i), what, k, i);
        }
        break;
      case Collective::kAllToAll: {
        // Rank s sends (s + d + pick) % 3 * c / 2 elements to rank d.
        const auto length = [&](int s, int d) {
          return static_cast<int64_t>((s + d + pick % 3) % 3 * c / 2);
        };
        std::vector<int64_t> ins(n), outs(n);
        int64_t in_total = 0, out_total = 0;
        for (int p = 0; p < n; ++p) {
          in_total += ins[p] = length(me, p);
          out_total += outs[p] = length(p, me);
        }
        in = input(me, in_total, k);
        out.assign(out_total, -1);
        call.in = in.data();
        call.out = out.data();
        call.in_counts = ins.data();
        call.out_counts = outs.data();
        group.run(call);
        int64_t at = 0;
        for (int s = 0; s < n; ++s) {
          int64_t from = 0;
          for (int d = 0; d < me; ++d) from += length(s, d);
          for (int64_t i = 0; i < outs[s]; ++i) {
            expect(out[at++], value(s, from + i, k), what, k, i);
          }
        }
        break;
      }
      default:
        group.run(call);
    }
    if (random() % 4 != 0) return;
    // A message around the ring of ranks, longer than a mailbox now and then.
    const uint64_t length = random() % 3 == 0 ? 100'000 : 10;
    const Buffer note = input(me, length, k);
    Buffer got(length, -1);
    const int left = (me + n - 1) % n;
    const auto sent = group.send((me + 1) % n, 5, DType::kInt32, length, note.data());
    const auto received =
        group.receive(k % 2 == 0 ? -1 : left, 5, DType::kInt32, length, got.data());
    if (group.wait(received, milliseconds(60000)) != left) ++wrong;
    group.wait(sent, milliseconds(60000));
    for (uint64_t i = 0; i < length; ++i) expect(got[i], value(left, i, k), "recv", k, i);
  }
};

void run_threads(int n, void (*body)(int, void*), void* arg) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back(body, i, arg);
  for (std::thread& t : threads) t.join();
}

int run(int ranks, int calls, unsigned seed, uint64_t slot, int threads, int calls_before) {
  GroupOptions options;
  options.slot_bytes = slot;
  options.threads = threads;
  options.calls_before = static_cast<uint32_t>(calls_before);
  options.timeout = milliseconds(60000);
  options.parallel = run_threads;
  const auto groups = make_thread_groups(ranks, options);
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (int r = 0; r < ranks; ++r) {
    all.emplace_back([&, r] {
      std::mt19937 random(seed);
      Rank rank = {*groups[r]};
      try {
        for (int k = 0; k < calls; ++k) rank.make_call(k, random, slot);
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", r, error.what());
        ++rank.wrong;
      }
      wrong += rank.wrong;
    });
  }
  for (std::thread& t : all) t.join();
  std::printf("%d ranks, %d calls, seed %u: %d wrong\n", ranks, calls, seed, wrong.load());
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dda

int main(int argc, char** argv) {
  const auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  return dda::run(number(1, 2), number(2, 200), number(3, 1), number(4, 4096), number(5, 1),
                  number(6, 0));
}
