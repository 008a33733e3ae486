// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/cuda/chunk.h"
#include "drivers/socket/local_socket.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/memory/key.h"

namespace p2p::cuda_ipc {

/// Where other processes of this host fetch the chunks of memory that is offered here: a Unix socket and a
/// thread, from the first offer that somebody is told of on. Whoever asks has to know the offer's secret, and
/// is shown that this side knows it. Thread-safe.
class ChunkServer {
 public:
  using Export = std::function<Result<UniqueFd>(const cuda::Chunk& chunk)>;

  /// Holds memory while some of it is exported; the error says why it may not be.
  using Access = std::function<Result<std::shared_ptr<const void>>()>;

  /// What one caller is given, and has for as long as he keeps his connection.
  struct Lease {
    Bytes words;
    std::vector<UniqueFd> descriptors;
    std::shared_ptr<const void> kept;
  };
  using MakeLease = std::function<Result<Lease>(int device)>;

  explicit ChunkServer(Export exporter = cuda::export_chunk, MakeLease make_lease = nullptr,
                       socket::Place place = {})
      : export_(std::move(exporter)), make_lease_(std::move(make_lease)), place_(std::move(place)) {}
  ~ChunkServer();
  ChunkServer(const ChunkServer&) = delete;
  ChunkServer& operator=(const ChunkServer&) = delete;

  /// By which the chunks can be had from now on.
  Result<Ticket> offer(std::vector<cuda::Chunk> chunks, Access access);

  /// By which something of `device` is lent to each that asks.
  Result<Ticket> offer_lease(int device);

  /// Nobody gets them any more.
  void withdraw(const Ticket& ticket);

 private:
  struct Offered {
    Ticket ticket;
    std::vector<cuda::Chunk> chunks;
    Access access;
    int leases_of = -1;  // a device: there are no chunks
  };
  /// Somebody at the socket.
  struct Caller {
    UniqueFd socket;
    Token challenge{};
    std::shared_ptr<const Offered> wants;  // once it has proven that it may
    std::size_t next = 0;                  // the chunk to be sent next
    std::shared_ptr<const void> lease;     // while he has one, he is not pushed out
    UniqueFd kept;                         // the last one sent: the first export after all are closed is slow
  };

  Result<Ticket> add(std::shared_ptr<Offered> offered) P2P_REQUIRES(mutex_);
  Status start() P2P_REQUIRES(mutex_);
  void run();
  void greet_callers(std::list<Caller>& callers, std::vector<pollfd>& polled);
  bool serve(Caller& caller);
  bool recognise(Caller& caller, ByteView request);
  bool send_batch(Caller& caller);
  bool send_lease(Caller& caller) const;
  static bool refuse(const Caller& caller, const Error& error);
  std::shared_ptr<const Offered> find(std::uint64_t ticket);

  const Export export_;
  const MakeLease make_lease_;
  const socket::Place place_;
  Mutex mutex_;
  Token name_ P2P_GUARDED_BY(mutex_){};
  std::uint64_t last_ticket_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<const Offered>> offers_ P2P_GUARDED_BY(mutex_);
  std::map<int, Ticket> leases_ P2P_GUARDED_BY(mutex_);  // by device
  std::thread thread_ P2P_GUARDED_BY(mutex_);
  socket::Listener listener_;  // these two are made before the thread
  UniqueFd stop_;              // readable: the thread is to end
};

}  // namespace p2p::cuda_ipc
