#include "engine/messages.h"

#include <algorithm>

#include "engine/ring.h"

namespace dda {

namespace {
constexpr milliseconds kLook{10};  // how often it looks whether a message's time is up
}

Messages::Messages(int rank, int size, const ArenaView* arenas, const Layout& layout,
                   std::vector<std::shared_ptr<const Life>> lives)
    : rank_(rank),
      size_(size),
      arenas_(arenas),
      ring_bytes_(layout.mailbox_bytes),
      watch_(Watch::Kind::kMessages, rank, size, arenas, std::move(lives)),
      sends_(size),
      incoming_(size) {}

Messages::Ptr Messages::make(bool is_send, int peer, uint32_t tag, DType dtype, uint64_t count,
                             void* data, milliseconds timeout) {
  if (peer >= size_ || peer < (is_send ? 0 : -1)) {
    throw Error(Error::Kind::kInvalid, std::string(is_send ? "send" : "recv") + " on rank " +
                                           std::to_string(rank_) + ": there is no rank " +
                                           std::to_string(peer) + " in a group of " +
                                           std::to_string(size_));
  }
  auto message = std::make_shared<Message>();
  message->is_send = is_send;
  message->peer = peer;
  message->tag = tag;
  message->dtype = dtype;
  message->bytes = count * size_of(dtype);
  message->data = static_cast<unsigned char*>(data);
  message->limit.restart(timeout);
  message->limit.is_over();  // starts its clock
  ++outstanding_;
  return message;
}

Messages::Ptr Messages::send(int peer, uint32_t tag, DType dtype, uint64_t count, const void* data,
                             milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Ptr message = make(true, peer, tag, dtype, count, const_cast<void*>(data), timeout);
  sends_[peer].push_back(message);
  progress_locked();
  return message;
}

Messages::Ptr Messages::receive(int peer, uint32_t tag, DType dtype, uint64_t count, void* data,
                                milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Ptr message = make(false, peer, tag, dtype, count, data, timeout);
  if (!answer_from_early(message)) receives_.push_back(message);
  progress_locked();
  return message;
}

int Messages::progress() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (progress_locked() != 0 && !is_hopeful()) fail_all();
  return outstanding_;
}

// Whether the outstanding messages can still come to an end.
bool Messages::is_hopeful() {
  if (!watch_.is_whole() || is_overdue()) return false;
  int left = 0;
  for (int p = 0; p < size_; ++p) left += p != rank_ && watch_.has_left(p) ? 1 : 0;
  for (int p = 0; p < size_; ++p) {
    if (p == rank_ || !watch_.has_left(p)) continue;
    const bool is_awaited = !sends_[p].empty() || incoming_[p].in_payload ||
                            std::any_of(receives_.begin(), receives_.end(), [&](const Ptr& r) {
                              return r->peer == p || (r->peer < 0 && left == size_ - 1);
                            });
    // What it sent before it left still counts.
    if (is_awaited && !push(p) && !pull(p)) {
      watch_.miss(p);
      return false;
    }
  }
  return true;
}

// Whether the time of a message is up; then the group is revoked.
bool Messages::is_overdue() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLook;
  Message* overdue = nullptr;
  visit_outstanding([&](Message& m) {
    if (overdue == nullptr && m.limit.is_over()) overdue = &m;
  });
  if (overdue == nullptr) return false;
  // A wait whose limit is over: it says what every wait says.
  const int peer = overdue->peer >= 0 ? overdue->peer : rank_;
  return !watch_.wait(peer, [] { return false; }, overdue->limit);
}

template <class Visit>
void Messages::visit_outstanding(Visit visit) const {
  for (const auto& queue : sends_) {
    for (const Ptr& m : queue) visit(*m);
  }
  for (const Ptr& m : receives_) visit(*m);
  for (const Incoming& in : incoming_) {
    if (in.matched != nullptr) visit(*in.matched);
    if (in.failed != nullptr) visit(*in.failed);
  }
}

int Messages::progress_locked() {
  bool moved = false;
  for (int p = 0; p < size_; ++p) {
    moved |= push(p);
    moved |= pull(p);
  }
  outstanding_ = static_cast<int>(receives_.size());
  for (int p = 0; p < size_; ++p) {
    // A payload that is dropped too: its sender waits until it is through.
    const bool is_receiving = incoming_[p].in_payload && incoming_[p].early == nullptr;
    outstanding_ += static_cast<int>(sends_[p].size()) + (is_receiving ? 1 : 0);
  }
  if (moved) watch_.ring();
  return outstanding_;
}

bool Messages::push(int peer) {
  std::deque<Ptr>& queue = sends_[peer];
  Ring ring(arenas_[rank_].mailbox(peer), ring_bytes_);
  bool moved = false;
  while (!queue.empty()) {
    Message& m = *queue.front();
    if (!m.has_begun) {
      if (ring.room() < sizeof(Header)) return moved;
      const Header header = {m.tag, static_cast<uint32_t>(m.dtype), m.bytes};
      ring.write(&header, sizeof(header));
      m.has_begun = true;
      moved = true;
    }
    const uint64_t here = std::min(ring.room(), m.bytes - m.moved);
    if (here > 0) {
      ring.write(m.data + m.moved, here);
      m.moved += here;
      moved = true;
    }
    if (m.moved < m.bytes) return moved;
    finish(m);
    queue.pop_front();
  }
  return moved;
}

bool Messages::pull(int peer) {
  Incoming& in = incoming_[peer];
  Ring ring(arenas_[peer].mailbox(rank_), ring_bytes_);
  bool moved = false;
  while (in.in_payload || has_receive_for(peer)) {
    if (!in.in_payload) {
      if (ring.available() < sizeof(Header)) return moved;
      Header header;
      ring.read(&header, sizeof(header));
      begin_payload(peer, header);
      moved = true;
    }
    Message* const into = in.matched != nullptr ? in.matched.get()
                          : in.early != nullptr ? &in.early->message
                                                : nullptr;
    const uint64_t here = std::min(ring.available(), in.left);
    if (here > 0) {
      ring.read(into != nullptr ? into->data + into->moved : nullptr, here);
      if (into != nullptr) into->moved += here;
      in.left -= here;
      moved = true;
    }
    if (in.left > 0) return moved;
    end_payload(peer);
  }
  return moved;
}

void Messages::begin_payload(int peer, const Header& header) {
  Incoming& in = incoming_[peer];
  in.in_payload = true;
  in.left = header.bytes;
  Ptr receive = take_receive(peer, header.tag);
  if (receive != nullptr) {
    receive->peer = peer;
    if (check(*receive, peer, header.bytes, header.dtype)) {
      in.matched = std::move(receive);
    } else {
      in.failed = std::move(receive);  // done when the sender is rid of its payload
    }
    return;
  }
  in.waiting.emplace_back();
  Early& early = in.waiting.back();
  try {
    early.kept.resize(header.bytes);
  } catch (const std::exception&) {
    in.waiting.pop_back();  // its payload is dropped
    watch_.revoke(Error::Kind::kMemory, peer,
                  "no memory to set aside a message of " + std::to_string(header.bytes) +
                      " bytes that rank " + std::to_string(peer) + " sent");
    return;
  }
  early.message.peer = peer;
  early.message.tag = header.tag;
  early.message.dtype = static_cast<DType>(header.dtype);
  early.message.bytes = header.bytes;
  early.message.data = early.kept.data();
  in.early = &early;
}

void Messages::end_payload(int peer) {
  Incoming& in = incoming_[peer];
  if (in.matched != nullptr) finish(*in.matched);
  if (in.failed != nullptr) finish(*in.failed);
  if (in.early != nullptr) finish(in.early->message);
  in.matched = in.failed = nullptr;
  in.early = nullptr;
  in.in_payload = false;
  // A receive that was posted while an early message came in may be for it.
  for (auto it = receives_.begin(); it != receives_.end();) {
    it = answer_from_early(*it) ? receives_.erase(it) : std::next(it);
  }
}

bool Messages::answer_from_early(const Ptr& receive) {
  const int first = receive->peer < 0 ? 0 : receive->peer;
  const int last = receive->peer < 0 ? size_ - 1 : receive->peer;
  for (int p = first; p <= last; ++p) {
    std::list<Early>& waiting = incoming_[p].waiting;
    const auto it = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const Early& e) { return e.message.tag == receive->tag; });
    if (it == waiting.end() || !it->message.done.load()) continue;
    receive->peer = p;
    const uint32_t dtype = static_cast<uint32_t>(it->message.dtype);
    if (check(*receive, p, it->message.bytes, dtype)) {
      std::copy(it->kept.begin(), it->kept.end(), receive->data);
    }
    waiting.erase(it);
    finish(*receive);
    return true;
  }
  return false;
}

bool Messages::has_receive_for(int peer) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Ptr& r) { return r->peer == peer || r->peer < 0; });
}

// The oldest receive that a message of `tag` from `peer` answers. Those that an older message of
// that tag was waiting for have been answered already, by end_payload.
Messages::Ptr Messages::take_receive(int peer, uint32_t tag) {
  const auto it = std::find_if(receives_.begin(), receives_.end(), [&](const Ptr& r) {
    return r->tag == tag && (r->peer == peer || r->peer < 0);
  });
  if (it == receives_.end()) return nullptr;
  Ptr receive = *it;
  receives_.erase(it);
  return receive;
}

bool Messages::check(Message& receive, int peer, uint64_t bytes, uint32_t dtype) const {
  if (receive.bytes == bytes && static_cast<uint32_t>(receive.dtype) == dtype) return true;
  const auto elements = [](uint64_t n, DType d) {
    return std::to_string(n / size_of(d)) + " elements of " + name_of(d);
  };
  const bool known = dtype < static_cast<uint32_t>(kNumDTypes);
  receive.error = std::make_unique<Error>(
      Error::Kind::kMismatch,
      "recv on rank " + std::to_string(rank_) + " (tag " + std::to_string(receive.tag) +
          "): rank " + std::to_string(peer) + " sent " +
          (known ? elements(bytes, static_cast<DType>(dtype)) : "an unknown dtype") +
          ", this rank receives " + elements(receive.bytes, receive.dtype) +
          ". Nothing was written. Make both sides agree.",
      peer);
  return false;
}

void Messages::finish(Message& message) { message.done.store(true, std::memory_order_release); }

void Messages::fail_all() {
  visit_outstanding([&](Message& m) {
    const char* const what = m.is_send ? "send" : "recv";
    const std::string where = std::string(what) + " on rank " + std::to_string(rank_);
    if (watch_.is_revoked()) {
      const Failure f = watch_.failure();
      m.error = std::make_unique<Error>(f.kind, where + ": " + f.why, f.culprit);
    } else {
      m.error = std::make_unique<Error>(Error::Kind::kAborted, where + ": the group was destroyed");
    }
    finish(m);
  });
  for (auto& queue : sends_) queue.clear();
  receives_.clear();
  for (Incoming& in : incoming_) in.matched = in.failed = nullptr;
  outstanding_ = 0;
}

int Messages::wait(const Ptr& message, milliseconds timeout) {
  const auto is_ready = [&] {
    if (!message->done.load(std::memory_order_acquire)) progress();
    return message->done.load(std::memory_order_acquire);
  };
  if (!message->done.load(std::memory_order_acquire)) {
    int bell = rank_;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (message->peer >= 0) bell = message->peer;
    }
    Limit limit(timeout);
    if (!watch_.wait(bell, is_ready, limit)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      fail_all();
    }
  }
  if (message->error != nullptr) throw Error(*message->error);
  return message->peer;
}

bool Messages::is_done(const Ptr& message) {
  if (!message->done.load(std::memory_order_acquire)) return false;
  if (message->error != nullptr) throw Error(*message->error);
  return true;
}

}  // namespace dda
