// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "message.h"

#include <utility>

#include "bytes.h"

namespace p2p::weights {

namespace {

// Changes when a message does: others are not understood.
constexpr std::string_view kNoteMark = "uccl.weights 4";
constexpr std::string_view kAnyMark = "uccl.weights ";
constexpr std::size_t kMostText = 1024;

void put(Writer& out, const Key& key) {
  out.number(key.version);
  out.number(key.publication);
  out.number(key.demand);
}

void put(Writer&, const Withdraw&) {}
void put(Writer&, const Follow&) {}
void put(Writer&, const Done&) {}
void put(Writer& out, const Took& took) { out.number(took.bytes); }
void put(Writer& out, const Offer& offer) { put(out, offer.base); }
void put(Writer& out, const TableAt& table) {
  out.region(table.memory);
  out.text(table.bytes);
}
void put(Writer& out, const Join& join) { put(out, join.demand); }
void put(Writer& out, const Refuse& refuse) { out.text(std::string_view(refuse.why).substr(0, kMostText)); }

void put(Writer& out, const Layout& layout) {
  put(out, layout.table);
  out.number(static_cast<std::uint8_t>(layout.deltas));
}

void put(Writer& out, const Delta& delta) {
  out.number(delta.chunk);
  out.region(delta.memory);
  out.number(delta.address);
  out.number(delta.bytes);
}

void put(Writer& out, const Tell& tell) {
  out.number(tell.member.id);
  out.number(tell.member.order);
  out.number(tell.member.port);
  out.text(tell.member.address);
}

void put(Writer& out, const Have& have) {
  out.number(static_cast<std::uint32_t>(have.chunks.size()));
  for (const ChunkDigest& row : have.chunks) {
    out.number(row.chunk);
    out.number(row.digest);
  }
}

Key take_key(Reader& in) {
  Key key;
  key.version = in.number<std::uint64_t>();
  key.publication = in.number<std::uint64_t>();
  key.demand = in.number<std::uint64_t>();
  return key;
}

bool take(Reader&, Withdraw&) { return true; }
bool take(Reader&, Follow&) { return true; }
bool take(Reader&, Done&) { return true; }
bool take(Reader& in, TableAt& table) {
  table.memory = in.region();
  table.bytes = in.text(kMostSaid);
  return true;
}
bool take(Reader& in, Join& join) { return take(in, join.demand); }

bool take(Reader& in, Took& took) {
  took.bytes = in.number<std::uint64_t>();
  return true;
}

bool take(Reader& in, Offer& offer) {
  offer.base = take_key(in);
  return true;
}

bool take(Reader& in, Layout& layout) {
  take(in, layout.table);
  layout.deltas = in.number<std::uint8_t>() != 0;
  return true;
}

bool take(Reader& in, Delta& delta) {
  delta.chunk = in.number<std::uint32_t>();
  delta.memory = in.region();
  delta.address = in.number<std::uint64_t>();
  delta.bytes = in.number<std::uint32_t>();
  const std::uint64_t into = delta.address - delta.memory.address;
  return delta.address >= delta.memory.address && into <= delta.memory.size && delta.bytes > 0 &&
         delta.bytes <= delta.memory.size - into;
}

bool take(Reader& in, Refuse& refuse) {
  refuse.why = in.text(kMostText);
  return true;
}

bool take(Reader& in, Tell& tell) {
  tell.member.id = in.number<std::uint64_t>();
  tell.member.order = in.number<std::uint32_t>();
  tell.member.port = in.number<std::uint16_t>();
  tell.member.address = in.text(kMostText);
  return tell.member.id != 0 && tell.member.port != 0 && !tell.member.address.empty();
}

bool take(Reader& in, Have& have) {
  const std::uint32_t rows = in.count(sizeof(std::uint32_t) + sizeof(std::uint64_t));
  if (rows > kMostChunksTold) return false;
  have.chunks.resize(rows);
  for (ChunkDigest& row : have.chunks) {
    row.chunk = in.number<std::uint32_t>();
    row.digest = in.number<std::uint64_t>();
  }
  return true;
}

/// The message of kind `at` of the variant.
template <std::size_t at = 0>
std::optional<Message> take_message(std::size_t kind, Reader& in) {
  if constexpr (at < std::variant_size_v<Message>) {
    if (kind != at) return take_message<at + 1>(kind, in);
    std::variant_alternative_t<at, Message> message;
    message.key = take_key(in);
    if (!take(in, message) || !in.at_end()) return std::nullopt;
    return message;
  }
  return std::nullopt;
}

}  // namespace

std::string encode(const Message& message) {
  Writer out;
  out.number(static_cast<std::uint8_t>(message.index()));
  std::visit(
      [&](const auto& kind) {
        put(out, kind.key);
        put(out, kind);
      },
      message);
  return out.take();
}

std::vector<Message> shortened(const Message& message) {
  Message shorter = message;
  auto* const join = std::get_if<Join>(&shorter);
  auto* const layout = std::get_if<Layout>(&shorter);
  if (TableAt* const table = join ? &join->demand : layout ? &layout->table : nullptr) {
    if (std::exchange(table->bytes, {}).empty()) return {};
    return {shorter};
  }
  auto* const first = std::get_if<Have>(&shorter);
  if (first == nullptr || first->chunks.size() < 2) return {};
  Have second{first->key, {}};
  const auto half = first->chunks.begin() + static_cast<std::ptrdiff_t>(first->chunks.size() / 2);
  second.chunks.assign(half, first->chunks.end());
  first->chunks.erase(half, first->chunks.end());
  return {shorter, second};
}

Result<Message> decode(std::string_view bytes) {
  Reader in(bytes);
  auto message = take_message(in.number<std::uint8_t>(), in);
  if (!message || !in.ok()) {
    return tl::unexpected(Error{ErrorCode::kProtocol, "a message of " + std::to_string(bytes.size()) +
                                                          " bytes is none about weights"});
  }
  return std::move(*message);
}

std::string encode_note(const std::string& address, std::uint16_t port) {
  Writer out;
  out.raw(kNoteMark);
  out.number(port);
  out.text(address);
  return out.take();
}

std::optional<std::pair<std::string, std::uint16_t>> decode_note(std::string_view note) {
  Reader in(note);
  if (in.raw(kNoteMark.size()) != kNoteMark) return std::nullopt;
  const auto port = in.number<std::uint16_t>();
  std::string address(in.text(kMostText));
  if (!in.at_end() || port == 0 || address.empty()) return std::nullopt;
  return std::pair(std::move(address), port);
}

std::string why_refused(std::string_view note) {
  if (!note.starts_with(kAnyMark)) return "it is no publisher or subscriber of weights";
  return "it is of a release with other messages about weights, and all members need the same";
}

}  // namespace p2p::weights
