// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/requests/channel_messages.h"
#include "transport/tcp/connect/handshake.h"
#include "transport/tcp/stream/descriptors.h"
#include "transport/tcp/stream/frame.h"
#include "wire/encode.h"
#include "wire/fields.h"

namespace {

namespace wire = p2p::wire;
using p2p::Bytes;
using p2p::ByteView;
using Path = std::filesystem::path;

/// Gives every field some content, the same each time.
struct Fill {
  template <class... T>
  void operator()(T&... values) const {
    (fill(values), ...);
  }
  template <std::integral T>
  static void fill(T& value) {
    value = 3;
  }
  static void fill(std::string& text) { text = "tcp"; }
  static void fill(p2p::PeerText& text) { text = "tcp"; }
  static void fill(Bytes& bytes) { bytes.assign(5, std::byte{7}); }
  template <std::size_t kSize>
  static void fill(std::array<std::byte, kSize>& bytes) {
    bytes.fill(std::byte{9});
  }
  template <class T>
  static void fill(std::vector<T>& values) {
    values.resize(2);
    for (T& value : values) fill(value);
  }
  template <wire::Fielded T>
  static void fill(T& value) {
    wire::fields(value, Fill{});
  }
};

void write(const Path& path, ByteView bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// One seed a type, and one with all types in a row, fed in pieces of 7 bytes.
template <std::size_t... kIndex>
void write_control(const Path& folder, std::index_sequence<kIndex...>) {
  Bytes all(1, std::byte{7});
  const auto add = [&](wire::Message message) {
    std::visit([](auto& body) { Fill::fill(body); }, message);
    Bytes seed(1, std::byte{0});
    const Bytes frame = wire::encode(message);
    seed.insert(seed.end(), frame.begin(), frame.end());
    all.insert(all.end(), frame.begin(), frame.end());
    write(folder / wire::name(message), seed);
  };
  (add(wire::Message(std::in_place_index<kIndex>)), ...);
  write(folder / "all", all);
}

void write_descriptors(const Path& folder) {
  p2p::RegionDescriptor host{.address = 0x7f0000001000, .size = 4096, .region = p2p::RegionId{1}};
  write(folder / "host", host.serialize());
  host.size = std::uint64_t{5} << 30;
  write(folder / "long", host.serialize());
  host.place = {p2p::MemoryKind::kCuda, 1};
  write(folder / "cuda", host.serialize());
}

/// Streams of frames that mean something to the channel of data_frame_fuzz.cc: its region 1 with a key of
/// zeros has 32 KiB at 0x10000000, and it waits for the end of its write 1 and its read 1 of 64 bytes.
void write_frames(const Path& folder) {
  namespace tcp = p2p::tcp;
  const auto frame = [](tcp::FrameHeader header, const Bytes& descriptors = {}, std::size_t payload = 0) {
    header.descriptor_bytes = static_cast<std::uint32_t>(descriptors.size());
    header.payload_bytes = static_cast<std::uint32_t>(payload);
    Bytes bytes(tcp::FrameHeader::kBytes);
    header.write_to(bytes.data());
    bytes.insert(bytes.end(), descriptors.begin(), descriptors.end());
    bytes.resize(bytes.size() + payload, std::byte{7});
    return bytes;
  };
  const auto ranges = [](std::vector<tcp::RemoteRange> list) {
    tcp::RangeList all{.ranges = std::move(list)};
    all.groups.push_back({.region = p2p::RegionId{1}, .count = all.ranges.size()});
    Bytes bytes;
    tcp::encode_ranges(all, bytes);
    return bytes;
  };
  constexpr std::uint64_t kBase = 0x10000000;
  const Bytes two = ranges({{kBase + 100, 20}, {kBase, 44}});
  const Bytes pages = ranges({{kBase + 4096, 16}, {kBase, 16}, {kBase + 64, 16}, {kBase + 32, 16}});
  // The last two of a row, and three of the next, which is cut.
  const Bytes strided =
      ranges({{kBase + 204, 12}, {kBase + 232, 16}, {kBase + 300, 16}, {kBase + 332, 16}, {kBase + 364, 4}});
  const Bytes text(5, std::byte{'x'});
  const std::vector<std::pair<std::string, Bytes>> frames = {
      {"write", frame({.type = tcp::FrameType::kWrite, .number = 1}, two, 64)},
      {"write_pages", frame({.type = tcp::FrameType::kWrite, .number = 2}, pages, 64)},
      {"write_outside",
       frame({.type = tcp::FrameType::kWrite, .number = 3}, ranges({{kBase + 32760, 64}}), 64)},
      {"write_strided", frame({.type = tcp::FrameType::kWrite, .number = 4}, strided, 64)},
      {"read", frame({.type = tcp::FrameType::kReadRequest, .length = 64, .number = 1}, two)},
      {"response", frame({.type = tcp::FrameType::kReadResponse, .number = 1}, {}, 64)},
      {"end", frame({.type = tcp::FrameType::kReadEnd, .number = 1})},
      {"refusal", frame({.type = tcp::FrameType::kRefusal, .code = 2, .number = 1}, text)},
      {"words", frame({.type = tcp::FrameType::kMessages}, text)},
      {"acknowledgement", frame({.type = tcp::FrameType::kAck, .acknowledged = 1})}};
  Bytes all(1, std::byte{7});
  for (const auto& [name, bytes] : frames) {
    Bytes seed(1, std::byte{0});
    seed.insert(seed.end(), bytes.begin(), bytes.end());
    all.insert(all.end(), bytes.begin(), bytes.end());
    write(folder / name, seed);
  }
  write(folder / "all", all);
  Bytes descriptors(1, std::byte{1});
  descriptors.insert(descriptors.end(), pages.begin(), pages.end());
  write(folder / "descriptors", descriptors);
}

/// Claims as key_fuzz.cc reads them: on its region of 32 KiB at 0x10000000 with a key of 1, 2, 3 and zeros.
void write_keys(const Path& folder) {
  namespace cuda_ipc = p2p::cuda_ipc;
  const auto claim = [](std::uint64_t address, std::uint64_t size, const Bytes& exported) {
    Bytes bytes(17 + 16 + exported.size());
    for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(i == 0 ? 1 : i);
    std::memcpy(&bytes[17], &address, 8);
    std::memcpy(&bytes[25], &size, 8);
    std::copy(exported.begin(), exported.end(), bytes.begin() + 33);
    return bytes;
  };
  constexpr std::uint64_t kBase = 0x10000000;
  write(folder / "whole", claim(kBase, 32768, {}));
  write(folder / "past_the_end", claim(kBase + 32760, 16, {}));
  write(folder / "wraps", claim(kBase + 8, ~std::uint64_t{0}, {}));
  const cuda_ipc::SharedMemory memory{.base = kBase, .size = 65536};
  write(folder / "shared", claim(kBase, 32768, cuda_ipc::encode(cuda_ipc::ExportedKey{.memory = memory})));
  write(folder / "refusal", claim(kBase, 32768, cuda_ipc::encode(cuda_ipc::ExportedKey{.refusal = "why"})));
  const cuda_ipc::ExportedKey own{.is_private = true, .refusal = "why"};
  write(folder / "private", claim(kBase, 32768, cuda_ipc::encode(own)));
  const cuda_ipc::ExportedKey lends{
      .is_private = true, .ring = cuda_ipc::RingTicket{.ticket = {.number = 1}}, .refusal = "why"};
  write(folder / "private_ring", claim(kBase, 32768, cuda_ipc::encode(lends)));
  const cuda_ipc::ChunkedMemory chunks{.ticket = {.number = 1}, .base = kBase, .size = 65536, .count = 2};
  write(folder / "chunks", claim(kBase, 32768, cuda_ipc::encode(cuda_ipc::ExportedKey{.chunks = chunks})));
  const auto message = [&](const char* name, const cuda_ipc::ChannelMessage& said) {
    write(folder / name, claim(kBase, 32768, cuda_ipc::encode(said)));
  };
  const auto text = p2p::as_bytes("exported");
  const Bytes exported(text.begin(), text.end());
  message("offer", cuda_ipc::RegionOffer{p2p::RegionId{1}, kBase, 65536, exported});
  message("ring", cuda_ipc::RingOffer{.region = p2p::RegionId{1}, .ring = 1, .has_words = true, .words = 3});
  message("look", cuda_ipc::Look{});
  message("request",
          p2p::CopyRequest{.batch = 1,
                           .mine = p2p::RegionId{2},
                           .regions = {{p2p::RegionId{1}, {std::byte{1}, std::byte{2}, std::byte{3}}}},
                           .pieces = {{kBase, kBase, 16, 0}}});
  message("outcome", p2p::CopyOutcome{1, tl::unexpected(p2p::Error{p2p::ErrorCode::kNotFound, "why"})});
}

/// What channels say about copies to one that has region 1 with a key of 1, 2, 3 and zeros: 32 KiB at
/// 0x10000000.
void write_copy_requests(const Path& folder) {
  constexpr std::uint64_t kBase = 0x10000000;
  constexpr std::uint64_t kMine = 0x20000000;
  const p2p::CopyRequest::Region region{p2p::RegionId{1}, {std::byte{1}, std::byte{2}, std::byte{3}}};
  const p2p::CopyRequest good{.batch = 7,
                              .operation = p2p::Operation::kWrite,
                              .regions = {region, {p2p::RegionId{2}, {}}},
                              .pieces = {{kBase + 64, kMine, 100, 0}, {kBase + 32000, kMine + 100, 768, 0}}};
  write(folder / "write", p2p::encode(good));
  p2p::CopyRequest read = good;
  read.operation = p2p::Operation::kRead;
  read.pieces.push_back({kBase, kMine + 868, 8, 1});
  write(folder / "read_of_two_regions", p2p::encode(read));
  p2p::CopyRequest outside = good;
  outside.pieces[1].size = 769;
  write(folder / "outside", p2p::encode(outside));
  write(folder / "done", p2p::encode(p2p::CopyOutcome{7, {}}));
  const p2p::Error why{p2p::ErrorCode::kNotFound, "why"};
  write(folder / "refused", p2p::encode(p2p::CopyOutcome{7, tl::unexpected(why)}));
}

/// Choices as support/sequence.h reads them.
void write_sequences(const Path& folder) {
  const auto choices = [](std::initializer_list<std::initializer_list<unsigned>> steps) {
    Bytes bytes;
    for (const auto& step : steps) {
      for (const unsigned choice : step) bytes.push_back(static_cast<std::byte>(choice));
    }
    return bytes;
  };
  const std::initializer_list<unsigned> answer{1, 0, 0, 0, 0, 2, 1, 0, 1, 0};  // of two good channels
  const std::initializer_list<unsigned> refused{1, 0, 0, 0, 0, 2, 1, 0, 1, 1};
  const std::initializer_list<unsigned> offer{0, 0, 0, 0, 2, 1, 0, 1, 0};
  const std::initializer_list<unsigned> ready{3, 0, 0, 0, 0};
  const std::initializer_list<unsigned> tcp_given_up{3, 0, 0, 2, 3};
  const std::initializer_list<unsigned> control{5, 0, 1, 0, 1, 7};
  const std::initializer_list<unsigned> import{28, 1};
  const std::initializer_list<unsigned> post{29, 4, 0, 0};
  const std::initializer_list<unsigned> owner_says{8, 0, 0, 0, 0, 0, 0, 3, 0, 3, 0, 3};
  write(folder / "dialled", choices({{0}, answer, ready, tcp_given_up, import, post, owner_says}));
  write(folder / "dialling", choices({{1}, offer, ready, tcp_given_up, import, post, owner_says}));
  write(folder / "two_answers", choices({{0}, refused, answer, ready}));
  write(folder / "early_control", choices({{0}, control, answer}));
}

/// How connections begin.
void write_first_bytes(const Path& folder) {
  write(folder / "hello", wire::encode(wire::Hello{}));
  write(folder / "bye", wire::encode(wire::Bye{"too early"}));
  p2p::tcp::Greeting greeting;
  greeting.token.fill(std::byte{9});
  write(folder / "stream", greeting.encode());
  write(folder / "part_of_a_stream", ByteView(greeting.encode()).first(10));
  p2p::wire::Resume resume;
  resume.token.fill(std::byte{9});
  write(folder / "resume", wire::encode(resume));
  write(folder / "web", p2p::as_bytes("GET / HTTP/1.1\r\n\r\n"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds FOLDER (fuzz/corpus)\n");
    return 2;
  }
  const Path corpus(argv[1]);
  for (const char* const name :
       {"control", "copy_request", "data_frame", "descriptor", "first_bytes", "key", "session"}) {
    std::filesystem::create_directories(corpus / name);
  }
  write_control(corpus / "control", std::make_index_sequence<std::variant_size_v<wire::Message>>());
  write_copy_requests(corpus / "copy_request");
  write_frames(corpus / "data_frame");
  write_descriptors(corpus / "descriptor");
  write_first_bytes(corpus / "first_bytes");
  write_keys(corpus / "key");
  write_sequences(corpus / "session");
  return 0;
}
