#include "core/env.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

extern char** environ;

namespace dda {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kGiB = 1 << 30;

// A variable is a number between `low` and `high`, which may end in K, M or G, or a text; `values`
// lists the words that the text may be, separated by '|', or is empty where it may be anything.
struct Variable {
  const char* name;
  int64_t Env::* number;
  int64_t low;
  int64_t high;
  std::string Env::* text;
  const char* values;
  const char* fallback;
  bool agreed;
  const char* doc;
};

constexpr Variable number(const char* name, int64_t Env::* member, int64_t low, int64_t high,
                          const char* fallback, bool agreed, const char* doc) {
  return {name, member, low, high, nullptr, "", fallback, agreed, doc};
}

constexpr Variable text(const char* name, std::string Env::* member, const char* values,
                        const char* fallback, bool agreed, const char* doc) {
  return {name, nullptr, 0, 0, member, values, fallback, agreed, doc};
}

constexpr bool kAgreed = true;
constexpr bool kLocal = false;

constexpr Variable kVariables[] = {
    number("DDA_SLOT_BYTES", &Env::slot_bytes, 4 * kKiB, kGiB, "256K", kAgreed,
           "Bytes of one staging slot. A larger message passes through the slots in chunks."),
    number("DDA_FLAT_MAX_BYTES", &Env::flat_max_bytes, -1, 1024 * kGiB, "-1", kAgreed,
           "Largest all_reduce that takes the flat path. -1 leaves the choice to the table."),
    number(
        "DDA_SINGLE_COPY_BYTES", &Env::single_copy_bytes, -1, 1024 * kGiB, "-1", kAgreed,
        "Smallest part of an all_gather or all_to_all that ranks read from each other's memory in "
        "one copy (process_vm_readv), where the host permits it. 0: none. -1: those of 128 KiB to "
        "4 MiB."),
    number("DDA_SPIN", &Env::spin, 0, kGiB, "200", kLocal,
           "How often a waiting rank polls before it gives its core away."),
    text("DDA_ISA", &Env::isa, "auto|baseline|avx2|avx512", "auto", kLocal,
         "Instruction set of the routines that reduce. auto takes the widest that the CPU has; "
         "the result has the same bits with each."),
    number("DDA_EARLY_LAUNCH", &Env::early_launch, 0, 1, "1", kLocal,
           "On NVIDIA GPUs from compute capability 9.0 on: 1 lets a kernel of dda begin its launch "
           "while the one before it still runs."),
    number("DDA_DISABLE_SHARED_MEMORY", &Env::disable_shared_memory, 0, 1, "0", kAgreed,
           "1 treats every rank as if it were on another host, so that gloo carries all calls."),
    text("DDA_FAILPOINT", &Env::failpoint, "", "", kLocal,
         "name:rank:hit:action, a fault to plant: kill, stop, exit, or milliseconds to sleep. Only "
         "in "
         "builds made with DDA_FAILPOINTS=1."),
};

// Read by setup.py. Left in the environment at run time they mean nothing and do no harm.
constexpr const char* kBuildTime[] = {"DDA_BUILD", "DDA_FAILPOINTS"};

#ifdef DDA_FAILPOINTS
constexpr bool kHasFailpoints = true;
#else
constexpr bool kHasFailpoints = false;
#endif

bool parse_number(const std::string& word, int64_t low, int64_t high, int64_t* out) {
  errno = 0;
  char* end = nullptr;
  const long long digits = std::strtoll(word.c_str(), &end, 10);
  if (end == word.c_str() || errno != 0) return false;
  int shift = 0;
  if (*end != '\0') {
    const char* found = std::strchr("KMG", *end++);
    if (found == nullptr || *end != '\0') return false;
    shift = 10 * static_cast<int>(found - "KMG" + 1);
  }
  int64_t value = 0;
  if (__builtin_mul_overflow(digits, int64_t{1} << shift, &value)) return false;
  if (value < low || value > high) return false;
  *out = value;
  return true;
}

bool is_listed(const std::string& word, const std::string& values) {
  std::istringstream list(values);
  for (std::string value; std::getline(list, value, '|');) {
    if (value == word) return true;
  }
  return values.empty();
}

bool parse(const Variable& variable, const std::string& word, Env* out) {
  if (variable.number != nullptr) {
    return parse_number(word, variable.low, variable.high, &(out->*variable.number));
  }
  if (!is_listed(word, variable.values)) return false;
  out->*variable.text = word;
  return true;
}

std::string allowed(const Variable& variable) {
  if (variable.number == nullptr) return variable.values;
  return std::to_string(variable.low) + " to " + std::to_string(variable.high);
}

bool is_known(const std::string& name) {
  for (const Variable& variable : kVariables) {
    if (name == variable.name) return true;
  }
  for (const char* build_time : kBuildTime) {
    if (name == build_time) return true;
  }
  return false;
}

struct Parsed {
  Env env{};
  std::string errors;

  Parsed() {
    for (const Variable& variable : kVariables) {
      parse(variable, variable.fallback, &env);
      const char* value = std::getenv(variable.name);
      if (value == nullptr || parse(variable, value, &env)) continue;
      complain(std::string(variable.name) + "=" + value + " is not allowed; it takes " +
               allowed(variable));
    }
    if (!kHasFailpoints && !env.failpoint.empty()) {
      complain(
          "DDA_FAILPOINT is set, but this build has no fail points; rebuild with "
          "DDA_FAILPOINTS=1 or unset it");
    }
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      if (name.rfind("DDA_", 0) == 0 && !is_known(name)) {
        complain("unknown environment variable " + name + "; unset it or correct its name");
      }
    }
  }

  void complain(const std::string& what) { errors += (errors.empty() ? "" : ". ") + what; }
};

const Parsed& parsed() {
  static const Parsed once;
  return once;
}

}  // namespace

const Env& env() { return parsed().env; }

std::string check_env() { return parsed().errors; }

std::string fingerprint() {
  std::string words;
  for (const Variable& variable : kVariables) {
    if (!variable.agreed) continue;
    const std::string value =
        variable.number != nullptr ? std::to_string(env().*variable.number) : env().*variable.text;
    words += (words.empty() ? "" : " ") + std::string(variable.name) + "=" + value;
  }
  return words;
}

std::vector<EnvVariable> describe_env() {
  std::vector<EnvVariable> list;
  for (const Variable& variable : kVariables) {
    list.push_back(
        {variable.name, allowed(variable), variable.fallback, variable.doc, variable.agreed});
  }
  return list;
}

}  // namespace dda
