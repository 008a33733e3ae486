// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "drivers/cuda/memory.h"
#include "drivers/nccl_net/sigpipe.h"
#include "tcpx/core.h"

/// How a session's channels come about.
namespace tcpx {
namespace {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kInfoMagic = 0x69706374;  // "tcpi"
constexpr std::uint16_t kInfoVersion = 2;

Status copy_from_device(void* to, const void* from, std::size_t size) {
  return p2p::cuda::copy_now(to, from, size);
}

/// Polls until true or the time is over; the lock is taken by `poll` each time, so that others get turns.
template <class Poll>
Status poll_until(const std::string& what, std::chrono::milliseconds timeout, Poll&& poll) {
  const auto end = Clock::now() + timeout;
  while (true) {
    const Result<bool> done = poll();
    if (!done) return tl::unexpected(done.error());
    if (*done) return {};
    if (Clock::now() >= end)
      return fail(ErrorCode::kTimedOut, "{}: not complete after {} ms", what, timeout.count());
    std::this_thread::yield();
  }
}

Result<std::unique_ptr<Greeting>> open_greeting(const TcpxOptions& options, std::size_t channels) {
  const bool cuda = options.cuda_device >= 0;
  return Greeting::open(options.cuda_device, pointer_type(options, cuda), channels);
}

Status greet(Arriving& arriving, const TcpxOptions& options,
             const std::shared_ptr<p2p::device::Unpacker>& unpacker) {
  auto greeting = open_greeting(options, arriving.comms.size());
  if (!greeting) return tl::unexpected(greeting.error());
  arriving.greeting = std::move(*greeting);
  std::size_t index = 0;
  for (auto& comm : arriving.comms) {
    arriving.remote.receives.emplace_back(std::move(*comm), options.window, unpacker)
        .add(arriving.greeting->chunk(index++));
  }
  return {};
}

Status greet(Leaving& leaving, const TcpxOptions& options) {
  auto greeting = open_greeting(options, leaving.comms.size());
  if (!greeting) return tl::unexpected(greeting.error());
  leaving.greeting = std::move(*greeting);
  if (const Status written = leaving.greeting->write(leaving.token); !written) return written;
  std::size_t index = 0;
  for (auto& comm : leaving.comms) {
    leaving.remote.sends.emplace_back(std::move(*comm), options.window).add(leaving.greeting->chunk(index++));
  }
  return {};
}

}  // namespace

Result<std::vector<std::byte>> TcpxSession::Core::listen() {
  const OnDevice on_device(options_.cuda_device);
  if (options_.cuda_device >= 0) {
    const Status good = net::check_accepts(*plugin_, receiving_gpu(options_.cuda_device));
    if (!good) return fail(good.error().code, "listen: {}", good.error().message);
  }
  p2p::MutexLock lock(mutex_);
  if (arriving_) return fail(ErrorCode::kInvalidArgument, "listen: already listening for a client");
  const auto token = Greeting::draw();
  if (!token) return tl::unexpected(token.error());
  Arriving arriving{.token = *token, .ways = {}, .comms = {}, .greeting = nullptr, .remote = {}};
  p2p::Bytes info;
  p2p::ByteWriter writer(info);
  writer.put(kInfoMagic);
  writer.put(kInfoVersion);
  writer.put(static_cast<std::uint16_t>(options_.channels));
  writer.put(static_cast<std::uint64_t>(options_.chunk_bytes));
  writer.put(*token);
  for (std::size_t channel = 0; channel < options_.channels; ++channel) {
    auto listener = net::Listener::open(plugin_, device_of(channel),
                                        options_.cuda_device >= 0 ? copy_from_device : net::copy_from_host,
                                        options_.cuda_device);
    if (!listener) return tl::unexpected(listener.error());
    writer.put(listener->handle());
    arriving.ways.push_back(std::move(*listener));
  }
  arriving.comms.resize(arriving.ways.size());
  arriving_.emplace(std::move(arriving));
  return info;
}

Status TcpxSession::Core::accept(const std::string& name, std::chrono::milliseconds timeout) {
  return poll_until("accept of " + name, timeout, [&] { return poll_accept(name); });
}

Result<bool> TcpxSession::Core::poll_accept(const std::string& name) {
  const net::NoSigpipe quiet;
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  if (!arriving_) return fail(ErrorCode::kInvalidArgument, "accept of {}: listen comes first", name);
  if (const auto known = remotes_.find(name); known != remotes_.end() && !known->second.receives.empty()) {
    return fail(ErrorCode::kInvalidArgument, "accept of {}: it is connected already", name);
  }
  const auto arrived = arrive(*arriving_);
  if (!arrived) {
    arriving_.reset();
    return fail(arrived.error().code, "accept of {}: {}", name, arrived.error().message);
  }
  if (!*arrived) return false;
  remotes_[name].receives = std::move(arriving_->remote.receives);
  arriving_.reset();
  return true;
}

/// True once all channels are there and have shown whose they are.
Result<bool> TcpxSession::Core::arrive(Arriving& arriving) {
  if (const auto all = arriving.poll(); !all || !*all) return all;
  if (!arriving.greeting) {
    Status greeted = open_unpacker();
    if (greeted) greeted = greet(arriving, options_, unpacker_);
    if (!greeted) return tl::unexpected(greeted.error());
  }
  if (const Status moved = move(arriving.remote); !moved) return tl::unexpected(moved.error());
  if (arriving.greeting->under_way()) return false;
  if (const Status good = arriving.greeting->check(arriving.token); !good)
    return tl::unexpected(good.error());
  for (ReceiveChannel& channel : arriving.remote.receives) channel.forget(Greeting::kMemory);
  return true;
}

/// One for all channels, at the first accept.
Status TcpxSession::Core::open_unpacker() {
  const bool on_device = options_.cuda_device >= 0;
  if (unpacker_ || (on_device && options_.unpack == TcpxOptions::Unpack::kHost)) return {};
  p2p::device::Unpacker::Limits limits;
  if (options_.unpack == TcpxOptions::Unpack::kCopy) limits.bulk_bytes = 0;
  auto unpacker = p2p::device::Unpacker::open(on_device ? options_.cuda_device : -1, limits);
  if (!unpacker) return tl::unexpected(unpacker.error());
  unpacker_ = std::move(*unpacker);
  return {};
}

Status TcpxSession::Core::load(const std::string& name, std::span<const std::byte> info) {
  p2p::ByteReader reader(info);
  const bool known = reader.get<std::uint32_t>() == kInfoMagic && reader.get<std::uint16_t>() == kInfoVersion;
  const auto channels = reader.get<std::uint16_t>();
  const auto chunk_bytes = reader.get<std::uint64_t>();
  Greeting::Token token{};
  std::ranges::copy(reader.take(token.size()), token.begin());
  if (!known || !reader.ok() || reader.left() != std::size_t{channels} * net::abi::kHandleBytes) {
    return fail(ErrorCode::kInvalidArgument, "connection information of {}: {} bytes that are none", name,
                info.size());
  }
  if (channels != options_.channels || chunk_bytes != options_.chunk_bytes) {
    return fail(ErrorCode::kInvalidArgument, "{} has {} channels and chunks of {} bytes, we have {} and {}",
                name, channels, chunk_bytes, options_.channels, options_.chunk_bytes);
  }
  std::vector<net::Handle> handles(channels);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    std::ranges::copy(reader.take(handles[channel].size()), handles[channel].begin());
    if (const auto good = plugin_->check_peer_handle(device_of(channel), handles[channel]); !good) {
      return fail(good.error().code, "connection information of {}, channel {}: {}", name, channel,
                  good.error().message);
    }
  }
  p2p::MutexLock lock(mutex_);
  if (!remotes_[name].sends.empty() || leaving_.contains(name)) {
    return fail(ErrorCode::kInvalidArgument, "connection information of {}: loaded already", name);
  }
  Leaving leaving{.token = token, .ways = {}, .comms = {}, .greeting = nullptr, .remote = {}};
  for (std::size_t channel = 0; channel < channels; ++channel) {
    leaving.ways.emplace_back(plugin_, device_of(channel), handles[channel]);
  }
  leaving.comms.resize(channels);
  leaving_.emplace(name, std::move(leaving));
  return {};
}

Status TcpxSession::Core::connect(const std::string& name, std::chrono::milliseconds timeout) {
  return poll_until("connect to " + name, timeout, [&] { return poll_connect(name); });
}

Result<bool> TcpxSession::Core::poll_connect(const std::string& name) {
  const net::NoSigpipe quiet;
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  const auto found = leaving_.find(name);
  if (found == leaving_.end()) {
    return fail(ErrorCode::kInvalidArgument, "connect to {}: its connection information is not loaded", name);
  }
  const auto left = leave(found->second);
  if (!left) {
    leaving_.erase(found);
    return fail(left.error().code, "connect to {}: {}", name, left.error().message);
  }
  if (!*left) return false;
  remotes_[name].sends = std::move(found->second.remote.sends);
  leaving_.erase(found);
  return true;
}

/// True once all channels are there and have told whose they are.
Result<bool> TcpxSession::Core::leave(Leaving& leaving) {
  if (const auto all = leaving.poll(); !all || !*all) return all;
  if (!leaving.greeting) {
    if (const Status greeted = greet(leaving, options_); !greeted) return tl::unexpected(greeted.error());
  }
  if (const Status moved = move(leaving.remote); !moved) return tl::unexpected(moved.error());
  if (leaving.greeting->under_way()) return false;
  for (SendChannel& channel : leaving.remote.sends) channel.forget(Greeting::kMemory);
  return true;
}

}  // namespace tcpx
