// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/stream_io.h"

namespace p2p::socket {

/// The bytes of a connected stream, both ways: in clear. Small pieces go through memory in the core's cache:
/// the system copies them slower than the processor. Heirs make something else of them on the way. One
/// thread at a time.
class Stream {
 public:
  explicit Stream(UniqueFd fd) : fd_(std::move(fd)) {}
  virtual ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_.get(); }

  /// As those of stream_io.h.
  virtual Result<Moved> try_send(std::span<iovec> pieces, int flags);
  virtual Result<Moved> try_receive(std::span<iovec> into);

  /// Into memory that is known to be good.
  virtual Result<Moved> receive_into(std::span<std::byte> into);

  /// Bytes that `try_send` has taken and the socket not yet: `try_send` goes on with them, also with nothing
  /// new.
  virtual std::size_t kept() const { return kept_.size() - kept_sent_; }

  /// Something has come of which the descriptor does not tell.
  virtual bool holds() const { return false; }

  /// The least bytes that make it readable, a hint; and whether it is.
  virtual void set_low_water(std::size_t bytes);
  virtual bool readable_now() const;

  virtual bool encrypted() const { return false; }

 private:
  Result<Moved> send_kept();

  const UniqueFd fd_;
  Bytes kept_;  // gathered, and no room for it in the socket
  std::size_t kept_sent_ = 0;
};

}  // namespace p2p::socket
