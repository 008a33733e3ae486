// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "convert/errors.h"
#include "p2p/host_port.h"

namespace p2p::python {
namespace {

constexpr std::string_view kNoteMark = "UCCLp2p2";
constexpr std::size_t kTail = 6;  // port and GPU index

std::atomic<GpuNaming> naming_in_force{GpuNaming::kIndex};

// In place of an address: a name, or an address with a scope, follows behind the rest. No host has this
// address.
constexpr std::string_view kNamed = "\xff\xff\xff\xff";

std::string pack_address(const std::string& address) {
  std::array<char, 16> packed{};
  if (inet_pton(AF_INET, address.c_str(), packed.data()) == 1) return {packed.data(), 4};
  if (inet_pton(AF_INET6, address.c_str(), packed.data()) == 1) return {packed.data(), 16};
  return std::string(kNamed);
}

std::optional<std::string> name_in(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kNamed) || text.size() <= kNamed.size() + kTail) return std::nullopt;
  const auto host = HostPort::parse(text.substr(kNamed.size() + kTail));
  return host && !host->port ? std::optional(host->host) : std::nullopt;
}

std::string unpack_address(std::span<const std::byte> bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text.data(), text.size());
  return text.data();
}

std::uint16_t unpack_port(std::span<const std::byte> bytes) {
  return static_cast<std::uint16_t>((std::to_integer<unsigned>(bytes[0]) << 8) |
                                    std::to_integer<unsigned>(bytes[1]));
}

/// The PCI addresses that the NVIDIA driver lists, in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<std::string> driver_gpus() {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    found.push_back(entry.path().filename().string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool names_gpu_by_index(std::span<const std::byte> metadata) {
  return metadata.size() == 4 + kTail || metadata.size() == 16 + kTail || name_in(metadata);
}

GpuNaming gpu_naming() { return naming_in_force.load(std::memory_order_relaxed); }

void set_gpu_naming(GpuNaming naming) { naming_in_force.store(naming, std::memory_order_relaxed); }

std::string encode_metadata(const Identity& identity, GpuNaming naming) {
  std::string out = pack_address(identity.address);
  const bool named = out == kNamed;
  out.push_back(static_cast<char>(identity.port >> 8));
  out.push_back(static_cast<char>(identity.port & 0xff));
  if (named || naming == GpuNaming::kIndex) {
    out.append(reinterpret_cast<const char*>(&identity.gpu), sizeof identity.gpu);
    return named ? out + identity.address : out;
  }
  const std::string bdf = gpu_bdf(identity.gpu);
  out.push_back(static_cast<char>(bdf.size()));
  return out + bdf;
}

Result<Identity> decode_metadata(std::span<const std::byte> bytes) {
  Identity identity;
  const std::optional<std::string> name = name_in(bytes);
  for (std::size_t width : {std::size_t{4}, std::size_t{16}}) {
    if (bytes.size() != width + kTail && !name) continue;
    identity.address = name ? *name : unpack_address(bytes.first(width));
    identity.port = unpack_port(bytes.subspan(width, 2));
    std::memcpy(&identity.gpu, bytes.data() + width + 2, sizeof identity.gpu);
    return identity;
  }
  for (std::size_t width : {std::size_t{4}, std::size_t{16}}) {
    const std::size_t head = width + 3;
    if (bytes.size() < head || bytes.size() != head + std::to_integer<std::size_t>(bytes[width + 2])) {
      continue;
    }
    identity.address = unpack_address(bytes.first(width));
    identity.port = unpack_port(bytes.subspan(width, 2));
    const std::string_view bdf(reinterpret_cast<const char*>(bytes.data()) + head, bytes.size() - head);
    identity.gpu = gpu_index(bdf).value_or(-1);  // a GPU of another machine has no index here
    return identity;
  }
  return failure(ErrorCode::kInvalidArgument,
                 "metadata must be 10 bytes (IPv4), 22 bytes (IPv6) or name a host, not " +
                     std::to_string(bytes.size()));
}

std::string encode_note(const Identity& identity) {
  std::string out = std::string(kNoteMark) + static_cast<char>(identity.purpose);
  out.append(reinterpret_cast<const char*>(&identity.number), sizeof identity.number);
  return out + encode_metadata(identity, GpuNaming::kIndex);
}

Identity decode_note(const Peer& peer) {
  const std::string& note = peer.note;
  constexpr std::size_t kHead = 1 + sizeof(Identity::number);
  if (note.size() > kNoteMark.size() + kHead && note.starts_with(kNoteMark)) {
    const auto bytes = std::as_bytes(std::span(note)).subspan(kNoteMark.size());
    if (Result<Identity> identity = decode_metadata(bytes.subspan(kHead))) {
      std::memcpy(&identity->number, bytes.data() + 1, sizeof identity->number);
      const auto purpose = std::to_integer<std::uint8_t>(bytes[0]);
      if (purpose <= static_cast<std::uint8_t>(Purpose::kRemoteEndpoint)) {
        identity->purpose = static_cast<Purpose>(purpose);
      }
      return *identity;
    }
  }
  return Identity{.address = peer.address, .port = peer.port};
}

std::string gpu_bdf(std::int32_t index) {
  const std::vector<std::string> gpus = driver_gpus();
  if (index >= 0 && static_cast<std::size_t>(index) < gpus.size())
    return gpus[static_cast<std::size_t>(index)];
  return std::to_string(index);
}

Result<std::int32_t> gpu_index(std::string_view text) {
  std::int32_t index = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
  if (parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size()) return index;
  std::string wanted(text);
  std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::vector<std::string> gpus = driver_gpus();
  const auto found = std::ranges::find_if(gpus, [&](const std::string& gpu) {
    return gpu == wanted || (gpu.size() > wanted.size() && !wanted.empty() && gpu.ends_with(":" + wanted));
  });
  if (found != gpus.end()) return static_cast<std::int32_t>(found - gpus.begin());
  return failure(ErrorCode::kNotFound, "no GPU '" + std::string(text) + "' on this machine");
}

}  // namespace p2p::python
