// torch's key-value store as the engine wants it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "dda/group.h"

namespace dda {

class StoreBootstrap final : public Bootstrap {
 public:
  explicit StoreBootstrap(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {}

  void set(const std::string& key, const std::string& value) override {
    attempt(key, milliseconds{0}, [&] { store_->set(key, value); });
  }

  // Asks again and again: a store serves one request at a time, and one that waits for this group's
  // peers would hold up whoever else uses the store, perhaps the very thread that they wait for.
  std::string get(const std::string& key, milliseconds timeout) override {
    std::string value;
    attempt(key, timeout, [&] {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      for (auto pause = kFirstPause; !store_->check({key}); pause = std::min(2 * pause, kPause)) {
        if (std::chrono::steady_clock::now() >= deadline) throw std::runtime_error("no such key");
        std::this_thread::sleep_for(pause);
      }
      value = store_->get_to_str(key);
    });
    return value;
  }

  int64_t add(const std::string& key, int64_t amount) override {
    int64_t sum = 0;
    attempt(key, milliseconds{0}, [&] { sum = store_->add(key, amount); });
    return sum;
  }

 private:
  static constexpr std::chrono::microseconds kFirstPause{100}, kPause{10'000};

  // Stores throw different types when time is up, so the clock decides what has happened.
  template <typename Access>
  static void attempt(const std::string& key, milliseconds timeout, Access access) {
    const auto start = std::chrono::steady_clock::now();
    try {
      access();
    } catch (const std::exception& error) {
      const bool late =
          timeout.count() > 0 && std::chrono::steady_clock::now() - start >= timeout * 9 / 10;
      throw Error(late ? Error::Kind::kTimeout : Error::Kind::kSystem,
                  "the rendezvous store failed at key '" + key + "': " + error.what());
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace dda
