// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "transport/transport.h"

namespace p2p::conformance {

/// What the owner of a region tells a peer of it.
struct RegionOffer {
  RegionInfo info;
  Bytes exported;
};

/// What the engine would tell a peer of a region: all where the transport needs it, else what names it.
RegionOffer offer_of(const Transport& transport, const Registration& registration);

/// Registered memory of one peer, with guard bytes around it. The transport outlives it.
class Memory {
 public:
  /// The first byte lies `misalignment` bytes after a multiple of 64.
  Memory(Transport& transport, std::size_t size, std::size_t misalignment = 0,
         const RegionOptions& options = {});

  /// Registers bytes of other memory once more. That memory outlives this.
  Memory(Transport& transport, std::span<std::byte> part);

  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data_); }
  const Registration* registration() const { return registration_.get(); }
  RegionOffer offer() const;
  bool guards_are_intact() const;

  /// Ends peers' access; the memory stays.
  void revoke();

 private:
  void enroll(const RegionOptions& options);

  Transport& transport_;
  std::vector<std::byte> storage_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<Registration> registration_;
  bool revoked_ = false;
};

}  // namespace p2p::conformance
