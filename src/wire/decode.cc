// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "wire/decode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "wire/encode.h"
#include "wire/fields.h"

namespace p2p::wire {
namespace {

/// The fewest bytes that a T takes on the wire; never 0, so that a count is bounded by the bytes left.
template <class T>
constexpr std::size_t smallest() {
  if constexpr (std::integral<T>) {
    return sizeof(T);
  } else if constexpr (Fielded<T>) {
    T value;
    std::size_t sum = 0;
    fields(value,
           [&](const auto&... field) { sum = (smallest<std::remove_cvref_t<decltype(field)>>() + ...); });
    return sum;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return std::tuple_size_v<T>;
  } else {
    return sizeof(std::uint32_t);
  }
}

class Decoder {
 public:
  explicit Decoder(ByteReader& in) : in_(in) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }

 private:
  template <std::integral T>
  void get(T& value) {
    value = static_cast<T>(in_.get<std::make_unsigned_t<T>>());
  }

  template <std::size_t kSize>
  void get(std::array<std::byte, kSize>& bytes) {
    const ByteView taken = in_.take(kSize);
    std::copy(taken.begin(), taken.end(), bytes.begin());
  }

  void get(PeerText& text) { text = PeerText(in_.take(in_.get<std::uint32_t>())); }

  void get(std::string& text) { text = to_string(in_.take(in_.get<std::uint32_t>())); }

  void get(Bytes& bytes) {
    const ByteView taken = in_.take(in_.get<std::uint32_t>());
    bytes.assign(taken.begin(), taken.end());
  }

  template <class T>
  void get(std::vector<T>& values) {
    const auto count = in_.get<std::uint32_t>();
    if (count > in_.left() / smallest<T>()) {
      in_.take(in_.left() + 1);
      return;
    }
    values.resize(count);
    if constexpr (std::integral<T>) {
      if (count != 0) std::memcpy(values.data(), in_.take(count * sizeof(T)).data(), count * sizeof(T));
      return;
    }
    for (T& value : values) get(value);
  }

  template <Fielded T>
  void get(T& value) {
    fields(value, *this);
  }

  ByteReader& in_;
};

/// Makes it the alternative with this index, its fields as they are by default.
template <std::size_t... kIndex>
void become(Message& message, std::size_t index, std::index_sequence<kIndex...>) {
  ((index == kIndex ? (void)message.emplace<kIndex>() : void()), ...);
}

}  // namespace

Result<Message> decode(ByteView contents) {
  Message message;
  if (Status decoded = decode(contents, message); !decoded) return tl::unexpected(std::move(decoded).error());
  return message;
}

Status decode(ByteView contents, Message& message) {
  ByteReader in(contents);
  const auto type = in.get<std::uint16_t>();
  constexpr std::size_t kTypes = std::variant_size_v<Message>;
  // Type 0 wraps to an index out of range.
  const std::size_t index = static_cast<std::size_t>(type) - 1;
  if (!in.ok() || index >= kTypes) {
    return fail(ErrorCode::kProtocol, "decode a frame of {} bytes: message type {} is not one of 1 to {}",
                contents.size(), type, kTypes);
  }
  if (message.index() != index) become(message, index, std::make_index_sequence<kTypes>());
  std::visit([&](auto& body) { fields(body, Decoder(in)); }, message);
  if (!in.ok() || in.left() != 0) {
    return fail(ErrorCode::kProtocol, "decode a {} of {} bytes: {}", name(message), contents.size(),
                in.ok() ? fmt::format("{} bytes too many", in.left())
                        : std::string("it ends early, or a length in it is wrong"));
  }
  return {};
}

void FrameReader::feed(ByteView bytes) {
  if (error_) return;
  if (taken_ == buffer_.size()) {
    buffer_.clear();
    taken_ = 0;
  } else if (taken_ > buffer_.size() / 2) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> FrameReader::next() {
  if (error_) return tl::unexpected(*error_);
  const ByteView fed = ByteView(buffer_).subspan(taken_);
  if (fed.size() < kLengthBytes) return std::nullopt;
  const auto length = ByteReader(fed).get<std::uint32_t>();
  if (length < kTypeBytes || length > max_frame_bytes_ - kLengthBytes) {
    error_ = Error{ErrorCode::kProtocol, fmt::format("read a frame: its length is {} bytes, not {} to {}",
                                                     length, kTypeBytes, max_frame_bytes_ - kLengthBytes)};
  } else if (fed.size() - kLengthBytes < length) {
    return std::nullopt;
  } else if (auto message = decode(fed.subspan(kLengthBytes, length))) {
    taken_ += kLengthBytes + length;
    return std::optional<Message>(std::move(*message));
  } else {
    error_ = std::move(message).error();
  }
  buffer_ = Bytes();
  taken_ = 0;
  return tl::unexpected(*error_);
}

}  // namespace p2p::wire
