// torch's key-value store as the engine wants it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "dda/group.h"

namespace dda {

class StoreBootstrap final : public Bootstrap {
 public:
  // A clone, since a wait for one group must not hold up others that use the same store.
  explicit StoreBootstrap(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {}

  void set(const std::string& key, const std::string& value) override {
    attempt(key, milliseconds{0}, [&] { store_->set(key, value); });
  }

  std::string get(const std::string& key, milliseconds timeout) override {
    std::string value;
    attempt(key, timeout, [&] {
      store_->wait({key}, timeout);
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
