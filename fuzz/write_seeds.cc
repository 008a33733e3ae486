// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

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
    if (auto* hello = std::get_if<wire::Hello>(&message)) hello->version = wire::kVersion;
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds FOLDER (fuzz/corpus)\n");
    return 2;
  }
  const Path corpus(argv[1]);
  std::filesystem::create_directories(corpus / "control");
  std::filesystem::create_directories(corpus / "descriptor");
  write_control(corpus / "control", std::make_index_sequence<std::variant_size_v<wire::Message>>());
  write_descriptors(corpus / "descriptor");
  return 0;
}
