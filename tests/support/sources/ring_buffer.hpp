#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>

#if defined(_WIN32)
#define AUDIO_EXPORT __declspec(dllexport)
#else
#define AUDIO_EXPORT __attribute__((visibility("default")))
#endif

AUDIO_BEGIN_NAMESPACE

namespace audio {

enum class Overflow { Drop, Overwrite };

using Sample = float;

typedef void (*Callback)(const Sample* samples, std::size_t count);

struct AUDIO_EXPORT Format {
  int channels = 2;
  int rate = 48000;

  bool operator==(const Format& other) const noexcept {
    return channels == other.channels && rate == other.rate;
  }
};

template <typename T>
concept Plain = std::is_trivially_copyable_v<T>;

/// Moves samples from one thread to another without a lock.
template <Plain T, std::size_t Capacity>
class AUDIO_EXPORT RingBuffer final : private Counted<RingBuffer<T, Capacity>> {
  AUDIO_DISALLOW_COPY(RingBuffer)

 public:
  explicit RingBuffer(Overflow overflow = Overflow::Drop) : overflow_(overflow) {}

  virtual ~RingBuffer() { clear(); }

  AUDIO_NODISCARD bool push(const T& item) {
    const auto head = head_.load(std::memory_order_relaxed);
    if (full(head)) {
      if (overflow_ == Overflow::Drop) {
        return false;
      }
      tail_.fetch_add(1, std::memory_order_release);
    }
    items_[head % Capacity] = item;
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  AUDIO_ALWAYS_INLINE std::optional<T> pop() AUDIO_NOEXCEPT
  {
    const auto tail = tail_.load(std::memory_order_relaxed);
    if (tail == head_.load(std::memory_order_acquire)) {
      return std::nullopt;
    }
    auto item = items_[tail % Capacity];
    tail_.store(tail + 1, std::memory_order_release);
    return item;
  }

  static AUDIO_CONSTEXPR std::size_t capacity() { return Capacity; }

  T& operator[](std::size_t index) { return items_[index % Capacity]; }

  explicit operator bool() const { return head_ != tail_; }

  std::size_t drain(const std::function<void(const T&)>& visit);

  void clear();

 private:
  bool full(std::size_t head) const { return head - tail_.load(std::memory_order_acquire) >= Capacity; }

  std::array<T, Capacity> items_{};
  std::atomic<std::size_t> head_{0};
  std::atomic<std::size_t> tail_{0};
  Overflow overflow_;

#ifdef AUDIO_STATISTICS
  class Statistics {
   public:
    void count() { ++dropped_; }

   private:
    std::size_t dropped_ = 0;
  };
#else
  class NoStatistics {};
#endif
};

template <Plain T, std::size_t Capacity>
std::size_t RingBuffer<T, Capacity>::drain(const std::function<void(const T&)>& visit) {
  std::size_t moved = 0;
  while (auto item = pop()) {
    visit(*item);
    ++moved;
  }
  return moved;
}

template <Plain T, std::size_t Capacity>
void RingBuffer<T, Capacity>::clear() {
  while (pop()) {
  }
}

AUDIO_EXPORT std::string describe(const Format& format);

union Word {
  std::uint32_t whole;
  std::uint8_t bytes[4];
};

}  // namespace audio

AUDIO_END_NAMESPACE
