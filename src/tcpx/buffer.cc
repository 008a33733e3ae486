// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/buffer.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/memory.h"
#include "drivers/nccl_net/comm.h"

namespace tcpx {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;

namespace {

constexpr std::size_t kPage = 4096;

Status check_size(const char* what, std::size_t bytes, std::size_t size) {
  if (bytes <= size) return {};
  return fail(ErrorCode::kOutOfRange, "{} {} bytes of a buffer of {}", what, bytes, size);
}

}  // namespace

struct TcpxBuffer::State {
  std::unique_ptr<std::byte[]> host;
  p2p::cuda::DeviceBuffer device;
  std::byte* data = nullptr;
  std::size_t size = 0;
};

TcpxBuffer::TcpxBuffer(std::unique_ptr<State> state) : state_(std::move(state)) {}
TcpxBuffer::TcpxBuffer(TcpxBuffer&&) noexcept = default;
TcpxBuffer& TcpxBuffer::operator=(TcpxBuffer&&) noexcept = default;
TcpxBuffer::~TcpxBuffer() = default;

Result<TcpxBuffer> TcpxBuffer::allocate(int cuda_device, std::size_t size) {
  auto state = std::make_unique<State>();
  if (cuda_device < 0) {
    state->host = std::make_unique<std::byte[]>(size + kPage);
    state->data = state->host.get();
  } else {
    auto buffer = p2p::cuda::DeviceBuffer::allocate(cuda_device, size + kPage, true);
    if (!buffer) return tl::unexpected(buffer.error());
    state->device = std::move(*buffer);
    state->data = state->device.data();
  }
  state->data = p2p::nccl_net::page_range(state->data + kPage - 1, 1).data;
  state->size = size;
  return TcpxBuffer(std::move(state));
}

std::byte* TcpxBuffer::data() const { return state_->data; }
std::size_t TcpxBuffer::size() const { return state_->size; }

Status TcpxBuffer::write(std::span<const std::byte> bytes) const {
  if (auto fits = check_size("write", bytes.size(), state_->size); !fits) return fits;
  if (!state_->host) return p2p::cuda::copy_now(state_->data, bytes.data(), bytes.size());
  std::memcpy(state_->data, bytes.data(), bytes.size());
  return {};
}

Status TcpxBuffer::read(std::span<std::byte> bytes) const {
  if (auto fits = check_size("read", bytes.size(), state_->size); !fits) return fits;
  if (!state_->host) return p2p::cuda::copy_now(bytes.data(), state_->data, bytes.size());
  std::memcpy(bytes.data(), state_->data, bytes.size());
  return {};
}

}  // namespace tcpx
