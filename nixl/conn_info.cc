// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conn_info.h"

#include <algorithm>
#include <string>

#include "failure.h"
#include "p2p/host_port.h"

namespace p2p::nixl {
namespace {

constexpr std::string_view kMark = "UCCLNIXL";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kPortAt = 12;
constexpr std::size_t kLengthAt = 14;
constexpr std::size_t kIncarnationAt = 16;
constexpr std::size_t kAddressAt = 24;
constexpr std::size_t kMostAddress = 64;
constexpr std::size_t kSumAt = 120;
static_assert(kSumAt + sizeof(std::uint64_t) == ConnInfo::kBytes);

void put(std::string& blob, std::size_t at, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) blob[at + i] = static_cast<char>(value >> (8 * i));
}

std::uint64_t get(std::string_view blob, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(blob[at + i]);
  return value;
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return sum;
}

bool all_zero(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\0'; });
}

// A host alone, without brackets or a port.
bool is_host(const std::string& text) {
  const auto place = HostPort::parse(text);
  return place && place->host == text;
}

tl::unexpected<Error> refuse(const std::string& why) {
  return failure(ErrorCode::kInvalidArgument, "read connection info: " + why);
}

}  // namespace

Result<std::string> ConnInfo::encode() const {
  const char* const why = address.size() > kMostAddress ? "it has room for 64 bytes of an address"
                          : !is_host(address)           ? "that is no host"
                          : port == 0                   ? "port 0 is none to dial"
                                                        : nullptr;
  if (why != nullptr) {
    return failure(ErrorCode::kInvalidArgument,
                   "make connection info of " + address + " port " + std::to_string(port) + ": " + why);
  }
  std::string blob(kBytes, '\0');
  blob.replace(0, kMark.size(), kMark);
  put(blob, kVersionAt, kVersion, 4);
  put(blob, kPortAt, port, 2);
  put(blob, kLengthAt, address.size(), 2);
  put(blob, kIncarnationAt, incarnation, 8);
  blob.replace(kAddressAt, address.size(), address);
  put(blob, kSumAt, fnv1a(std::string_view(blob).substr(0, kSumAt)), 8);
  return blob;
}

Result<ConnInfo> ConnInfo::decode(std::string_view blob) {
  if (blob.size() != kBytes) {
    return refuse(std::to_string(blob.size()) + " bytes in place of " + std::to_string(kBytes));
  }
  if (!blob.starts_with(kMark)) return refuse("it was not made by this backend");
  if (const std::uint64_t version = get(blob, kVersionAt, 4); version != kVersion) {
    return refuse("it has version " + std::to_string(version) + ", this is version " +
                  std::to_string(kVersion));
  }
  if (get(blob, kSumAt, 8) != fnv1a(blob.substr(0, kSumAt))) return refuse("it is damaged");
  const std::size_t length = get(blob, kLengthAt, 2);
  if (length > kMostAddress) return refuse("an address of " + std::to_string(length) + " bytes");
  if (!all_zero(blob.substr(kAddressAt + length, kSumAt - kAddressAt - length))) {
    return refuse("bytes that must be zero are not");
  }
  ConnInfo info{std::string(blob.substr(kAddressAt, length)),
                static_cast<std::uint16_t>(get(blob, kPortAt, 2)), get(blob, kIncarnationAt, 8)};
  if (!is_host(info.address)) return refuse("its address is none");
  if (info.port == 0) return refuse("it names no port");
  return info;
}

}  // namespace p2p::nixl
