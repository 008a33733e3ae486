// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "p2p/api.h"
#include "p2p/result.h"

namespace tcpx {

/// Owns memory that begins at a page of 4 KiB, as GPUDirect-TCPX wants it: of a CUDA device, or of the host.
/// Movable.
class P2P_API TcpxBuffer {
 public:
  /// Zeroed. `cuda_device` -1: host memory.
  static p2p::Result<TcpxBuffer> allocate(int cuda_device, std::size_t size);
  TcpxBuffer(TcpxBuffer&&) noexcept;
  TcpxBuffer& operator=(TcpxBuffer&&) noexcept;
  ~TcpxBuffer();

  std::byte* data() const;
  std::size_t size() const;  ///< bytes

  /// Copies host bytes to the start of the buffer, or from there, and waits.
  p2p::Status write(std::span<const std::byte> bytes) const;
  p2p::Status read(std::span<std::byte> bytes) const;

 private:
  struct State;
  explicit TcpxBuffer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tcpx
