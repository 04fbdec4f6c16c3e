#include "counters.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace fx {

namespace {

struct Entry {
  const char* op;
  const char* implementation;
  const char* algorithm;  // or null
  std::atomic<int64_t> calls{0};
};

// Entries are only ever appended, and published by `used`: readers need no lock.
constexpr int capacity = 256;
Entry entries[capacity];
std::atomic<int> used{0};
std::mutex appending;

bool same(const char* a, const char* b) {
  // A literal may have an address in each translation unit: the characters decide.
  return a == b || (a != nullptr && b != nullptr && std::strcmp(a, b) == 0);
}

Entry* find(const char* op, const char* implementation, const char* algorithm) {
  const int count = used.load(std::memory_order_acquire);
  for (Entry* entry = entries; entry != entries + count; ++entry)
    if (same(entry->op, op) && same(entry->implementation, implementation) && same(entry->algorithm, algorithm))
      return entry;
  return nullptr;
}

}  // namespace

void count(const char* op, const char* implementation, const char* algorithm) {
  Entry* entry = find(op, implementation, algorithm);
  if (entry == nullptr) {
    const std::lock_guard<std::mutex> lock(appending);
    entry = find(op, implementation, algorithm);
    const int next = used.load(std::memory_order_relaxed);
    if (entry == nullptr && next < capacity) {
      entry = &entries[next];
      entry->op = op;
      entry->implementation = implementation;
      entry->algorithm = algorithm;
      used.store(next + 1, std::memory_order_release);
    }
  }
  if (entry != nullptr) entry->calls.fetch_add(1, std::memory_order_relaxed);
}

std::string counters_text() {
  std::string text;
  const int count = used.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    const Entry& entry = entries[i];
    const int64_t calls = entry.calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    text += std::string(entry.op) + '\t' + entry.implementation;
    if (entry.algorithm != nullptr) text += std::string(":") + entry.algorithm;
    text += '\t' + std::to_string(calls) + '\n';
  }
  return text;
}

void reset_counters() {
  const int count = used.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) entries[i].calls.store(0, std::memory_order_relaxed);
}

}  // namespace fx
