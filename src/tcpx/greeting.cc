// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/greeting.h"

#include <sys/random.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tcpx {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;

namespace {
constexpr std::size_t kPlace = sizeof(Greeting::Token);
}  // namespace

Result<Greeting::Token> Greeting::draw() {
  Token token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return fail(ErrorCode::kSystem, "draw a token for the connection information: getrandom fails");
  }
  return token;
}

Greeting::Greeting(TcpxBuffer buffer, net::abi::PointerType type, std::size_t channels)
    : buffer_(std::move(buffer)), memory_{buffer_.data(), buffer_.size(), {}, type, 0}, channels_(channels) {}

Result<std::unique_ptr<Greeting>> Greeting::open(int cuda_device, net::abi::PointerType type,
                                                 std::size_t channels) {
  // Registrations of CUDA memory are of whole pages.
  auto buffer = TcpxBuffer::allocate(cuda_device, net::page_range(nullptr, channels * kPlace).size);
  if (!buffer) return tl::unexpected(buffer.error());
  return std::unique_ptr<Greeting>(new Greeting(std::move(*buffer), type, channels));
}

Chunk Greeting::chunk(std::size_t channel) {
  ++memory_.uses;
  ++progress_->left;
  return {progress_, kMemory, &memory_, memory_.data + channel * kPlace, kPlace};
}

Status Greeting::write(const Token& token) const {
  std::vector<std::byte> all;
  for (std::size_t channel = 0; channel < channels_; ++channel) {
    all.insert(all.end(), token.begin(), token.end());
  }
  return buffer_.write(all);
}

Status Greeting::check(const Token& token) const {
  std::vector<std::byte> all(channels_ * kPlace);
  if (Status read = buffer_.read(all); !read) return read;
  for (std::size_t channel = 0; channel < channels_; ++channel) {
    if (std::ranges::equal(token, std::span(all).subspan(channel * kPlace, kPlace))) continue;
    return fail(ErrorCode::kPermissionDenied,
                "channel {}: who connected has the connection information of another session", channel);
  }
  return {};
}

}  // namespace tcpx
