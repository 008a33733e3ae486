// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "drivers/crypto/stream_tls.h"
#include "drivers/socket/stream.h"
#include "p2p/result.h"
#include "transport/transport.h"

namespace p2p::tcp {

/// A stream within TLS 1.3. Nothing is handed out that has not been proven to be the peer's.
class SealedStream final : public socket::Stream, private crypto::StreamTls::Pipe {
 public:
  /// `key` is this stream's alone.
  static Result<std::unique_ptr<SealedStream>> start(UniqueFd fd, Role role,
                                                     const crypto::StreamTls::Key& key);

  /// True once frames may follow; call again when something has come until then.
  Result<bool> shake_hands() { return tls_->shake_hands(); }

  Result<socket::Moved> try_send(std::span<iovec> pieces, int flags) override;
  Result<socket::Moved> try_receive(std::span<iovec> into) override;
  Result<socket::Moved> receive_into(std::span<std::byte> into) override;
  std::size_t kept() const override { return tls_->kept(); }
  bool holds() const override { return holds_; }
  void set_low_water(std::size_t bytes) override;
  bool readable_now() const override { return holds_ || Stream::readable_now(); }
  bool encrypted() const override { return true; }

 private:
  explicit SealedStream(UniqueFd fd) : Stream(std::move(fd)) {}

  Result<std::size_t> send(ByteView bytes) override;
  Result<std::size_t> receive(std::span<std::byte> into) override;

  std::unique_ptr<crypto::StreamTls> tls_;
  bool holds_ = false;  // the last call had no room for more
};

}  // namespace p2p::tcp
