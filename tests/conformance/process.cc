// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "conformance/pair.h"
#include "support/devices.h"

namespace p2p::conformance {

namespace {

constexpr int kSocket = testing::Process::kPassed;

enum class Kind : std::uint8_t { kRegion, kAddress, kControl };

struct Frame {
  Kind kind{};
  std::uint32_t channel = 0;
  Bytes bytes;
};

bool send_frame(int socket, Kind kind, std::uint32_t channel, const Bytes& bytes) {
  Bytes packet;
  ByteWriter writer(packet);
  writer.put(static_cast<std::uint8_t>(kind));
  writer.put(channel);
  writer.put(ByteView(bytes));
  return ::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

/// None at the end of the stream.
std::optional<Frame> receive_frame(int socket) {
  Bytes packet(std::size_t{128} << 10);
  ssize_t size = 0;
  do {
    size = ::recv(socket, packet.data(), packet.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return std::nullopt;
  ByteReader reader(ByteView(packet).first(static_cast<std::size_t>(size)));
  Frame frame{.kind = Kind{reader.get<std::uint8_t>()}, .channel = reader.get<std::uint32_t>(), .bytes = {}};
  const ByteView rest = reader.take(reader.left());
  frame.bytes.assign(rest.begin(), rest.end());
  return frame;
}

Bytes serialize(const RegionOffer& offer, std::uint64_t address) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(address);
  writer.put(static_cast<std::uint32_t>(offer.info.id));
  writer.put(ByteView(offer.info.key));
  writer.put(reinterpret_cast<std::uint64_t>(offer.info.base));
  writer.put(offer.info.size);
  writer.put(ByteView(offer.exported));
  return bytes;
}

RegionOffer parse_offer(ByteReader reader) {
  RegionOffer offer;
  offer.info.id = RegionId{reader.get<std::uint32_t>()};
  std::ranges::copy(reader.take(offer.info.key.size()), offer.info.key.begin());
  offer.info.base = reinterpret_cast<std::byte*>(reader.get<std::uint64_t>());
  offer.info.size = reader.get<std::uint64_t>();
  const ByteView exported = reader.take(reader.left());
  offer.exported.assign(exported.begin(), exported.end());
  return offer;
}

/// Opens the channels and trades addresses in the order of a session: offer, answer.
Status meet(Peer& mine, Role role, int socket) {
  const auto send_control = [socket](std::uint32_t channel, const Bytes& message) {
    send_frame(socket, Kind::kControl, channel, message);
  };
  if (const Status opened = mine.open(session_of(role), send_control); !opened) return opened;
  const std::vector<Bytes> addresses = mine.addresses();
  const auto send_addresses = [&] {
    for (std::uint32_t i = 0; i < addresses.size(); ++i) send_frame(socket, Kind::kAddress, i, addresses[i]);
  };
  if (role == Role::kConnector) send_addresses();
  std::vector<Bytes> theirs;
  std::vector<Frame> early;
  while (theirs.size() < addresses.size()) {
    auto frame = receive_frame(socket);
    if (!frame) return fail(ErrorCode::kPeerGone, "trade addresses: the other process has ended");
    if (frame->kind == Kind::kAddress) {
      theirs.push_back(std::move(frame->bytes));
    } else {
      early.push_back(*std::move(frame));
    }
  }
  const Status connected = mine.connect(theirs);
  if (role == Role::kAcceptor) send_addresses();
  for (Frame& frame : early) mine.deliver(frame.channel, std::move(frame.bytes));
  return connected;
}

void deliver_until_end(Peer& mine, int socket) {
  while (auto frame = receive_frame(socket)) mine.deliver(frame->channel, std::move(frame->bytes));
}

}  // namespace

OtherProcess::OtherProcess(const std::string& transport, Role role) : role_(role) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  socket_ = UniqueFd(ends[0]);
  auto process = testing::Process::spawn(
      {"/proc/self/exe", "--serve", transport, role == Role::kConnector ? "connector" : "acceptor"}, ends[1]);
  ::close(ends[1]);  // no UniqueFd: a child would not have it
  if (!process) std::abort();
  process_.emplace(*std::move(process));
}

OtherProcess::~OtherProcess() {
  process_->kill_now();
  if (mine_ != nullptr) mine_->close();  // its channels send control messages through `socket_`
  if (reader_.joinable()) reader_.join();
}

Status OtherProcess::connect(Peer& mine) {
  const auto region = receive_frame(socket_.get());
  if (!region || region->kind != Kind::kRegion) {
    return fail(ErrorCode::kPeerGone, "the other process did not start");
  }
  ByteReader reader(region->bytes);
  address_ = reader.get<std::uint64_t>();
  region_ = parse_offer(reader);
  mine_ = &mine;
  const Role role = role_ == Role::kConnector ? Role::kAcceptor : Role::kConnector;
  if (const Status met = meet(mine, role, socket_.get()); !met) return met;
  reader_ = std::thread([this, &mine] { deliver_until_end(mine, socket_.get()); });
  return mine.wait_ready();
}

int serve(const std::vector<std::string>& arguments) {
  const Role role = arguments.at(1) == "connector" ? Role::kConnector : Role::kAcceptor;
  for (const TransportRegistry::Entry& entry : builtin_transports().entries) {
    if (entry.name != arguments.at(0)) continue;
    Peer mine(entry.make(options(), test_devices(options())));
    const Memory memory(mine.transport(), OtherProcess::kServedBytes);
    send_frame(kSocket, Kind::kRegion, 0, serialize(memory.offer(), memory.address()));
    if (meet(mine, role, kSocket)) deliver_until_end(mine, kSocket);
    mine.close();
    return 0;
  }
  return 2;
}

}  // namespace p2p::conformance
