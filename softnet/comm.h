// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "drivers/nccl_net/abi/types.h"
#include "drivers/nccl_net/abi/unpack.h"
#include "softnet/area.h"
#include "softnet/fragments.h"
#include "softnet/lender.h"
#include "softnet/pool.h"
#include "softnet/settings.h"
#include "softnet/socket.h"
#include "softnet/stager.h"

/// A comm is one direction of one TCP connection: messages in order, each a header and its bytes. All
/// progress happens in `test`. Any thread may call; a comm's calls are serialised.
namespace softnet {

namespace abi = p2p::nccl_net::abi;

inline constexpr std::size_t kRequests = Stager::kSlots;

/// In front of each message.
struct MessageHeader {
  static constexpr std::uint64_t kMagic = 0x3274656e74666f73;  // "softnet2"
  std::uint64_t magic = kMagic;
  std::uint32_t size = 0;
  std::uint32_t lent = 0;  ///< 1: the sender's memory waits for kRead
};
static_assert(sizeof(MessageHeader) == 16);

/// What `regMr` gives.
struct MemoryHandle {
  std::byte* data = nullptr;
  std::size_t size = 0;
  int type = 0;
  int device = -1;  ///< that it lies on; -1: host memory

  /// No bytes lie within any registration.
  bool covers(const void* address, std::size_t bytes) const;

  /// Whether these bytes may be moved, for `call`. With the habit `tcpxo` no byte of host memory moves.
  int check(const char* call, const void* address, int bytes) const;
};

/// Delays and short moves that the settings ask for.
class Throttle {
 public:
  explicit Throttle(std::uint64_t seed) : random_(seed) {}

  /// The most bytes that may move now.
  std::size_t allowance();
  void moved();

 private:
  std::mt19937_64 random_;
  std::chrono::steady_clock::time_point next_{};
};

class Comm;

/// What the host's request pointers point to.
struct Request {
  enum class State : std::uint8_t { kFree, kPosted, kDone, kFlushed };

  Comm* comm = nullptr;
  State state = State::kFree;
  bool scattered = false;  ///< lands in the pool
  bool late = false;       ///< and comes from there to `data` with its flush
  std::byte* data = nullptr;
  std::size_t size = 0;    ///< bytes; of a receive, the most it takes until its header has come
  std::size_t moved = 0;   ///< bytes, the header's included on a send
  bool announced = false;  ///< the header of a receive has come
  bool lent = false;       ///< its bytes leave or come without a copy of the sender's
  bool unread = false;     ///< of a send: the kernel has lent pages that the peer has not read
  MessageHeader header;
  FragmentPlan plan;
  Pool::Extent extent;  ///< of the pool of receives or of sends

  /// Of a send of device memory: `data` is there; it waits for room, is being copied, or lies in `extent`.
  enum class Staging : std::uint8_t { kNone, kWaiting, kCopying, kStaged };
  Staging staging = Staging::kNone;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int test(Request& request, int* done, int* sizes) = 0;
};

class SendComm : public Comm {
 public:
  explicit SendComm(UniqueFd socket);
  ~SendComm() override;

  bool ready() const { return !Stager::wanted() || stager_ != nullptr; }
  int post(const void* data, int size, const MemoryHandle* handle, void** request);
  int test(Request& request, int* done, int* sizes) override;

 private:
  void push();
  long send_next(std::size_t limit);
  void hear();
  std::uint64_t oldest_unread() const;
  void look_at_peer();
  void stage();
  bool can_leave(std::size_t slot);
  std::size_t gather(std::span<iovec> pieces, Follows& follows);
  void account(std::size_t moved);
  std::size_t fault_limit(std::size_t limit);

  std::mutex mutex_;
  UniqueFd socket_;
  Throttle throttle_;
  std::unique_ptr<Stager> stager_;
  std::unique_ptr<Lender> lender_;  // of what is staged; null: it is copied
  std::array<Request, kRequests> requests_;
  std::uint64_t posted_ = 0;
  std::uint64_t sent_ = 0;  // requests whose bytes the kernel has
  std::uint64_t freed_ = 0;
  std::uint64_t bytes_ = 0;
  std::chrono::steady_clock::time_point next_look_{};  // at a peer that takes or reads nothing
  int error_ = abi::kSuccess;
};

class RecvComm : public Comm {
 public:
  /// On an UNPACK device receives into CUDA-typed memory are scattered into the pool. `packet_bytes`: what a
  /// packet of the device carries.
  RecvComm(UniqueFd socket, std::size_t packet_bytes);
  ~RecvComm() override;

  bool ready() const { return unpack_ ? area_ != nullptr : !late_ || pool_ != nullptr; }
  void describe(abi::DeviceHandle& handle);

  int post(void* data, int size, const MemoryHandle* handle, void** request);
  int test(Request& request, int* done, int* sizes) override;
  int consumed(Request* request);

  /// With the habit `tcpxo`: of the receive at `data` that is done. Two of three end at once.
  int flush(const void* data, int size, void** request);

 private:
  void pull();
  int deliver(Request& request);
  void take_bytes();
  void tell_read();
  bool begin_message(Request& request);
  bool place(Request& request);
  FragmentPlan cut(std::size_t size);
  std::size_t scatter(const Request& request, std::span<iovec> pieces) const;
  bool account(Request& request, std::size_t moved);
  void publish(const Request& request, std::uint64_t sequence);

  std::mutex mutex_;
  UniqueFd socket_;
  const std::size_t packet_bytes_;
  const bool unpack_;
  const bool late_;  // the habit `tcpxo`
  Throttle throttle_;
  std::mt19937_64 random_;
  Pool* pool_ = nullptr;
  UnpackArea::Owner area_;
  abi::UnpackLists* lists_ = nullptr;
  std::array<Request, kRequests> requests_;
  MessageHeader next_;           // header under way, of the first message not yet announced
  std::size_t next_bytes_ = 0;   // of it, so far
  std::uint64_t fragments_ = 0;  // listed so far
  std::uint64_t posted_ = 0;
  std::uint64_t received_ = 0;  // requests all of whose bytes have come
  std::uint64_t reported_ = 0;  // done
  std::uint64_t freed_ = 0;
  std::uint64_t flushes_ = 0;
  std::size_t untold_ = 0;  // lent messages that were read, of which the sender does not know
  int error_ = abi::kSuccess;
};

}  // namespace softnet
