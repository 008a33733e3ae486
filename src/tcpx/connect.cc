// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "drivers/cuda/memory.h"
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
constexpr std::uint16_t kInfoVersion = 1;

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

}  // namespace

Result<std::vector<std::byte>> TcpxSession::Core::listen() {
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  if (!listeners_.empty()) return fail(ErrorCode::kInvalidArgument, "listen: already listening for a client");
  std::vector<net::Listener> listeners;
  p2p::Bytes info;
  p2p::ByteWriter writer(info);
  writer.put(kInfoMagic);
  writer.put(kInfoVersion);
  writer.put(static_cast<std::uint16_t>(options_.channels));
  writer.put(static_cast<std::uint64_t>(options_.chunk_bytes));
  for (std::size_t channel = 0; channel < options_.channels; ++channel) {
    auto listener = net::Listener::open(plugin_, device_of(channel),
                                        options_.cuda_device >= 0 ? copy_from_device : net::copy_from_host,
                                        options_.cuda_device);
    if (!listener) return tl::unexpected(listener.error());
    writer.put(listener->handle());
    listeners.push_back(std::move(*listener));
  }
  listeners_ = std::move(listeners);
  accepted_.clear();
  accepted_.resize(listeners_.size());
  return info;
}

Status TcpxSession::Core::accept(const std::string& name, std::chrono::milliseconds timeout) {
  return poll_until("accept of " + name, timeout, [&] { return poll_accept(name); });
}

Result<bool> TcpxSession::Core::poll_accept(const std::string& name) {
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  if (listeners_.empty()) return fail(ErrorCode::kInvalidArgument, "accept of {}: listen comes first", name);
  bool all = true;
  for (std::size_t channel = 0; channel < listeners_.size(); ++channel) {
    if (accepted_[channel]) continue;
    auto comm = listeners_[channel].poll();
    if (!comm) {
      listeners_.clear();
      return tl::unexpected(comm.error());
    }
    accepted_[channel] = std::move(*comm);
    all = all && accepted_[channel].has_value();
  }
  if (!all) return false;
  if (auto opened = open_unpacker(); !opened) return tl::unexpected(opened.error());
  std::vector<ReceiveChannel> channels;
  channels.reserve(accepted_.size());
  for (auto& comm : accepted_) channels.emplace_back(std::move(*comm), options_.window, unpacker_);
  Remote& remote = remotes_[name];
  if (!remote.receives.empty()) {
    return fail(ErrorCode::kInvalidArgument, "accept of {}: it is connected already", name);
  }
  remote.receives = std::move(channels);
  listeners_.clear();
  accepted_.clear();
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
    if (const auto good = net::check_handle(handles[channel], plugin_->name()); !good) {
      return fail(good.error().code, "connection information of {}, channel {}: {}", name, channel,
                  good.error().message);
    }
  }
  p2p::MutexLock lock(mutex_);
  Remote& remote = remotes_[name];
  if (!remote.sends.empty() || !remote.connectors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "connection information of {}: loaded already", name);
  }
  for (std::size_t channel = 0; channel < channels; ++channel) {
    remote.connectors.emplace_back(plugin_, device_of(channel), handles[channel]);
  }
  remote.connected.resize(channels);
  return {};
}

Status TcpxSession::Core::connect(const std::string& name, std::chrono::milliseconds timeout) {
  return poll_until("connect to " + name, timeout, [&] { return poll_connect(name); });
}

Result<bool> TcpxSession::Core::poll_connect(const std::string& name) {
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  const auto found = remotes_.find(name);
  if (found == remotes_.end() || found->second.connectors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "connect to {}: its connection information is not loaded", name);
  }
  Remote& remote = found->second;
  bool all = true;
  for (std::size_t channel = 0; channel < remote.connectors.size(); ++channel) {
    if (remote.connected[channel]) continue;
    auto comm = remote.connectors[channel].poll();
    if (!comm) {
      remote.connectors.clear();
      return tl::unexpected(comm.error());
    }
    remote.connected[channel] = std::move(*comm);
    all = all && remote.connected[channel].has_value();
  }
  if (!all) return false;
  for (auto& comm : remote.connected) remote.sends.emplace_back(std::move(*comm), options_.window);
  remote.connectors.clear();
  remote.connected.clear();
  return true;
}

}  // namespace tcpx
