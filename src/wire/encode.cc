// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "wire/encode.h"

#include <array>
#include <cstring>

#include "wire/fields.h"

namespace p2p::wire {
namespace {

/// How many bytes values take.
class Sizer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (add(values), ...);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  template <std::integral T>
  void add(T /*value*/) {
    bytes_ += sizeof(T);
  }

  template <std::size_t kSize>
  void add(const std::array<std::byte, kSize>& /*bytes*/) {
    bytes_ += kSize;
  }

  void add(const PeerText& text) { add_counted(text.text().size()); }
  void add(const std::string& text) { add_counted(text.size()); }
  void add(const Bytes& bytes) { add_counted(bytes.size()); }

  template <class T>
  void add(const std::vector<T>& values) {
    if constexpr (std::integral<T>) return add_counted(values.size() * sizeof(T));
    add_counted(0);
    for (const T& value : values) add(value);
  }

  template <Fielded T>
  void add(const T& value) {
    fields(value, *this);
  }

  void add_counted(std::size_t bytes) { bytes_ += sizeof(std::uint32_t) + bytes; }

  std::size_t bytes_ = 0;
};

/// Writes values to where there is room for them: some are lists of many thousands.
class Encoder {
 public:
  explicit Encoder(std::byte* to) : to_(to) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <std::integral T>
  void put(T value) {
    put_bytes(&value, sizeof value);
  }

  template <std::size_t kSize>
  void put(const std::array<std::byte, kSize>& bytes) {
    put_bytes(bytes.data(), kSize);
  }

  void put(const PeerText& text) { put_counted(text.text().data(), text.text().size()); }
  void put(const std::string& text) { put_counted(text.data(), text.size()); }
  void put(const Bytes& bytes) { put_counted(bytes.data(), bytes.size()); }

  template <class T>
  void put(const std::vector<T>& values) {
    put_count(values.size());
    if constexpr (std::integral<T>) return put_bytes(values.data(), values.size() * sizeof(T));
    for (const T& value : values) put(value);
  }

  template <Fielded T>
  void put(const T& value) {
    fields(value, *this);
  }

  // What does not fit 32 bits is far over kMaxFrameBytes and never sent.
  void put_count(std::size_t count) { put(static_cast<std::uint32_t>(count)); }

  void put_counted(const void* data, std::size_t bytes) {
    put_count(bytes);
    put_bytes(data, bytes);
  }

  void put_bytes(const void* data, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to_, data, bytes);
    to_ += bytes;
  }

  std::byte* to_;
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
  std::visit(
      [&](const auto& body) {
        Sizer sizer;
        fields(body, sizer);
        frame.resize(kLengthBytes + kTypeBytes + sizer.bytes());
        const auto length = static_cast<std::uint32_t>(frame.size() - kLengthBytes);
        const auto type = static_cast<std::uint16_t>(message.index() + 1);
        Encoder encoder(frame.data());
        encoder(length, type);
        fields(body, encoder);
      },
      message);
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
