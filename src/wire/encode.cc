// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "wire/encode.h"

#include <array>
#include <cstring>

#include "wire/fields.h"

namespace p2p::wire {
namespace {

class Encoder {
 public:
  explicit Encoder(Bytes& out) : out_(out) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <std::integral T>
  void put(T value) {
    out_.put(static_cast<std::make_unsigned_t<T>>(value));
  }

  template <std::size_t kSize>
  void put(const std::array<std::byte, kSize>& bytes) {
    out_.put(ByteView(bytes));
  }

  void put(const PeerText& text) { put(text.text()); }

  void put(const std::string& text) {
    put_count(text.size());
    out_.put(as_bytes(text));
  }

  void put(const Bytes& bytes) {
    put_count(bytes.size());
    out_.put(ByteView(bytes));
  }

  template <class T>
  void put(const std::vector<T>& values) {
    put_count(values.size());
    for (const T& value : values) put(value);
  }

  template <Fielded T>
  void put(const T& value) {
    fields(value, *this);
  }

  // What does not fit 32 bits is far over kMaxFrameBytes and never sent.
  void put_count(std::size_t count) { out_.put(static_cast<std::uint32_t>(count)); }

  ByteWriter out_;
};

constexpr std::array<std::string_view, std::variant_size_v<Message>> kNames = {"Hello",
                                                                               "Introduction",
                                                                               "ChannelOffer",
                                                                               "ChannelAnswer",
                                                                               "ChannelsReady",
                                                                               "ChannelControl",
                                                                               "RegionQuery",
                                                                               "RegionAnswer",
                                                                               "RegionRevoke",
                                                                               "RegionRevoked",
                                                                               "ReceivePosted",
                                                                               "ReceiveDone",
                                                                               "ReceiveWithdrawn",
                                                                               "Notify",
                                                                               "NotifyDone",
                                                                               "Heartbeat",
                                                                               "Bye",
                                                                               "MessageBlock",
                                                                               "EagerMessage",
                                                                               "MessageAnswered",
                                                                               "MessageDeclined",
                                                                               "ReceiveWanted",
                                                                               "MessageWithdrawn",
                                                                               "SendsEnded",
                                                                               "ChannelReopen",
                                                                               "ChannelReopened",
                                                                               "NotifyTaken",
                                                                               "ChannelsRest",
                                                                               "ChannelsWanted",
                                                                               "EncryptionWish",
                                                                               "Resumable",
                                                                               "CumulativeAck",
                                                                               "Resume",
                                                                               "ResumeAnswer",
                                                                               "Resumed",
                                                                               "AlternateAddresses",
                                                                               "DigestQuery",
                                                                               "DigestAnswer"};

}  // namespace

Bytes encode(const Message& message) {
  Bytes frame;
  encode(message, frame);
  return frame;
}

void encode(const Message& message, Bytes& frame) {
  frame.clear();
  ByteWriter header(frame);
  header.put(std::uint32_t{0});
  header.put(static_cast<std::uint16_t>(message.index() + 1));
  std::visit([&](const auto& body) { fields(body, Encoder(frame)); }, message);
  const auto length = static_cast<std::uint32_t>(frame.size() - kLengthBytes);
  std::memcpy(frame.data(), &length, sizeof length);
}

void lengthen(std::span<std::byte> frame, std::uint32_t tail_bytes) {
  const auto add = [&](std::size_t at) {
    std::uint32_t count = 0;
    std::memcpy(&count, frame.data() + at, sizeof count);
    count += tail_bytes;
    std::memcpy(frame.data() + at, &count, sizeof count);
  };
  add(0);
  add(frame.size() - sizeof tail_bytes);
}

std::string_view name(const Message& message) { return kNames[message.index()]; }

}  // namespace p2p::wire
