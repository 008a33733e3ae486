// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/sealed_stream.h"

#include <utility>

#include "base/error.h"
#include "base/io_vector.h"

namespace p2p::tcp {
namespace {

// More than a record, of which nothing is handed out before it is whole.
constexpr std::size_t kRecordBytes = std::size_t{32} << 10;

}  // namespace

Result<std::unique_ptr<SealedStream>> SealedStream::start(UniqueFd fd, Role role,
                                                          const crypto::StreamTls::Key& key) {
  std::unique_ptr<SealedStream> stream(new SealedStream(std::move(fd)));
  const auto side = role == Role::kConnector ? crypto::Tls::Side::kDials : crypto::Tls::Side::kAccepts;
  auto tls = crypto::StreamTls::start(side, key, *stream);
  if (!tls) return tl::unexpected(tls.error());
  stream->tls_ = std::move(*tls);
  return stream;
}

Result<socket::Moved> SealedStream::try_send(std::span<iovec> pieces, int /*flags*/) {
  const auto taken = tls_->send(pieces);
  if (!taken) return tl::unexpected(taken.error());
  return socket::Moved{.bytes = taken->bytes, .blocked = kept() != 0, .faulted = taken->faulted};
}

Result<socket::Moved> SealedStream::try_receive(std::span<iovec> into) {
  const auto got = tls_->receive(into);
  if (!got) return tl::unexpected(got.error());
  holds_ = got->bytes == total_bytes(into);
  return socket::Moved{.bytes = got->bytes, .blocked = !holds_, .faulted = got->faulted};
}

Result<socket::Moved> SealedStream::receive_into(std::span<std::byte> into) {
  const auto got = tls_->receive_into(into);
  if (!got) return tl::unexpected(got.error());
  holds_ = *got == into.size();
  return socket::Moved{.bytes = *got, .blocked = !holds_};
}

void SealedStream::set_low_water(std::size_t bytes) {
  Stream::set_low_water(bytes > kRecordBytes ? bytes - kRecordBytes : 1);
}

Result<std::size_t> SealedStream::send(ByteView bytes) {
  const Result<socket::Moved> moved = socket::try_send(fd(), bytes);
  if (!moved) return tl::unexpected(moved.error());
  return moved->bytes;
}

Result<std::size_t> SealedStream::receive(std::span<std::byte> into) {
  const Result<socket::Moved> moved = socket::try_receive(fd(), into);
  if (!moved) return tl::unexpected(moved.error());
  if (moved->ended) return fail(ErrorCode::kPeerGone, "the peer closed the stream");
  return moved->bytes;
}

}  // namespace p2p::tcp
