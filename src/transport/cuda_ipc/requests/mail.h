// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "p2p/result.h"
#include "transport/message_ring.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// A channel's messages to its twin: by words in memory that both processes share, once there are some, which
/// takes a microsecond, else by its ControlLink, which takes some ten. What is asked arrives in its order,
/// whichever way each message went. Used by one thread at a time.
class Mail {
 public:
  explicit Mail(ControlLink* link) : link_(link) {}

  /// What is asked goes to `there` from now on as far as there is room, and answers come from `back`. `kept`
  /// keeps them.
  void ask_by(std::shared_ptr<const void> kept, Ring& there, Ring& back);
  bool asks_by_words() const { return asked_.has_value(); }

  /// The same for what the peer asks. False: it has done that before.
  bool serve_by(std::shared_ptr<const void> kept, Ring& from, Ring& back);

  void ask(ByteView message);

  /// Answers may overtake each other.
  void answer(ByteView message);

  /// The link brought a message that the peer asked.
  void note_asked() { ++came_; }

  /// Takes the next message that words brought; false: there is none, or its turn has not come. An error is
  /// the peer's breach of the protocol, and final.
  Result<bool> next(Bytes& message);

  /// As Channel's.
  bool arm_events() { return !served_ || served_->reader.arm_events(); }
  void enter_polling() {
    if (served_) served_->reader.enter_polling();
  }

 private:
  struct Way {
    std::shared_ptr<const void> kept;
    RingWriter writer;
    RingReader reader;
  };

  bool write(Way& way, ByteView block);
  Result<bool> read_asked(Bytes& message);

  ControlLink* const link_;
  std::optional<Way> asked_;
  std::optional<Way> served_;
  std::uint64_t sent_ = 0;  // asked by the link
  std::uint64_t came_ = 0;  // of the peer's
  bool held_ = false;       // `block_` was read and waits for its turn
  Bytes block_;
  std::optional<Error> error_;
};

}  // namespace p2p::cuda_ipc
