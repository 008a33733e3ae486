// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2p::kernels {

/// A copy for a kernel that stands by, as it lies in pinned host memory. Each word carries the order's number
/// in its upper 16 bits, so that one read tells whether the whole order has come. `unused` is tagged like the
/// others.
struct alignas(32) Order {
  std::uint64_t source = 0;
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;  ///< 0: the kernel ends
  std::uint64_t unused = 0;
};

inline constexpr unsigned kFieldBits = 48;
inline constexpr std::uint64_t kFieldMask = (std::uint64_t{1} << kFieldBits) - 1;

constexpr std::uint64_t tagged(std::uint64_t field, std::uint32_t number) {
  return field | std::uint64_t{number} << kFieldBits;
}

/// Places of orders: one lies at its number modulo this.
inline constexpr std::uint32_t kOrders = 16;

/// Where a kernel that stands by and its host meet. Orders are worked off in the order of their numbers, and
/// what is in place of number `first` when the kernel starts is not looked at.
struct StandbyBoard {
  const Order* orders = nullptr;  ///< kOrders, pinned host memory
  Order* relay = nullptr;         ///< kOrders, device memory, zero before the first kernel
  std::uint32_t* done = nullptr;  ///< pinned host memory: `first` once the kernel runs, then the number of
                                  ///< the last order done
  std::uint32_t* arrivals = nullptr;  ///< kOrders, device memory, zero
  std::uint32_t first = 0;
  std::uint64_t life_ns = 0;  ///< the kernel ends after this even if nobody tells it to
  std::uint64_t idle_ns = 0;  ///< and after this without an order
};

/// Starts the kernel on `stream` (cudaStream_t) of the current device. Returns the CUDA runtime's code.
int launch_standby(const StandbyBoard& board, unsigned ctas, void* stream);

}  // namespace p2p::kernels
