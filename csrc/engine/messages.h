// Send and receive. Each ordered pair of ranks has a ring of bytes in the sender's arena; a message
// is a header and its payload, streamed through the ring, so any length passes. A receiver takes
// from a ring only while it has receives that this peer could answer. A message that none of them
// asked for (another tag) is set aside in memory of the receiver, in order.
//
// All outstanding messages advance together in progress(), whoever calls it: two ranks that send to
// each other before they receive do not block each other.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "dda/group.h"
#include "engine/watch.h"
#include "memory/layout.h"

namespace dda {

struct Message {
  bool is_send = false;
  int peer = -1;  // of a receive from any rank: known when it is matched
  uint32_t tag = 0;
  DType dtype = DType::kUInt8;
  uint64_t bytes = 0;
  unsigned char* data = nullptr;
  uint64_t moved = 0;      // of the payload
  bool has_begun = false;  // the header was sent, or has come
  Limit limit;             // runs from the call on, whether or not somebody waits
  std::atomic<bool> done{false};
  std::unique_ptr<Error> error;  // set before done
};

class Messages {
 public:
  Messages(int rank, int size, const ArenaView* arenas, const Layout& layout,
           std::vector<std::shared_ptr<const Life>> lives);

  std::shared_ptr<Message> send(int peer, uint32_t tag, DType dtype, uint64_t count,
                                const void* data, milliseconds timeout);
  std::shared_ptr<Message> receive(int peer, uint32_t tag, DType dtype, uint64_t count, void* data,
                                   milliseconds timeout);
  int progress();
  int wait(const std::shared_ptr<Message>& message, milliseconds timeout);
  bool is_done(const std::shared_ptr<Message>& message);

 private:
  using Ptr = std::shared_ptr<Message>;

  // What goes ahead of a payload.
  struct Header {
    uint32_t tag;
    uint32_t dtype;
    uint64_t bytes;
  };
  // A message that came before its receive: it is received into `kept`.
  struct Early {
    Message message;
    std::vector<unsigned char> kept;
  };
  // What is coming in from one peer.
  struct Incoming {
    Ptr matched;             // receives the payload, or
    Early* early = nullptr;  // keeps it, or
    Ptr failed;              // does not fit it, so that it is dropped
    bool in_payload = false;
    uint64_t left = 0;
    std::list<Early> waiting;  // early messages, oldest first
  };

  Ptr make(bool is_send, int peer, uint32_t tag, DType dtype, uint64_t count, void* data,
           milliseconds timeout);
  int progress_locked();
  bool is_hopeful();
  bool is_overdue();
  template <class Visit>
  void visit_outstanding(Visit visit) const;
  bool push(int peer);
  bool pull(int peer);
  void begin_payload(int peer, const Header& header);
  void end_payload(int peer);
  bool answer_from_early(const Ptr& receive);
  bool has_receive_for(int peer) const;
  Ptr take_receive(int peer, uint32_t tag);
  bool check(Message& receive, int peer, uint64_t bytes, uint32_t dtype) const;
  void fail_all();
  static void finish(Message& message);

  const int rank_, size_;
  const ArenaView* const arenas_;
  const uint64_t ring_bytes_;
  Watch watch_;
  std::mutex mutex_;
  std::vector<std::deque<Ptr>> sends_;  // by peer
  std::list<Ptr> receives_;             // not yet matched, in the order of their calls
  std::vector<Incoming> incoming_;      // by peer
  int outstanding_ = 0;
  std::chrono::steady_clock::time_point next_look_;  // at the clocks of messages
};

}  // namespace dda
