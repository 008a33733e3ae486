// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "p2p/result.h"
#include "transport/registration.h"

/// Regions of memory that was allocated to be shared (base/shared_memory.h). A channel whose peer's memory is
/// out of reach asks for the file behind a region when it is first used, and copies by itself from then on.
namespace p2p::cma {

/// A region of the peer's, mapped here once the peer has given its file. Thread-safe: a connection has one,
/// all channels of which use it.
class PeerMapping {
 public:
  /// The region begins at byte `offset` of the file, as its owner says.
  PeerMapping(const RegionInfo& region, std::uint64_t offset) : region_(region), offset_(offset) {}

  const RegionInfo& region() const { return region_; }

  /// Where a byte of the region is here; null: it is not mapped. To be asked only for what lies within.
  std::byte* at(std::uint64_t address) const {
    std::byte* const mapped = mapped_.load(std::memory_order_acquire);
    return mapped == nullptr ? nullptr : mapped + (address - reinterpret_cast<std::uint64_t>(region_.base));
  }

  /// The caller, and nobody else until `stop_asking`, is to ask for the file.
  bool begin_asking() { return !asked_.exchange(true); }
  void stop_asking() { asked_ = false; }

  /// Maps what the peer gave. What is not as it must be stays out, and is not asked for again.
  void take(const Result<UniqueFd>& file);

  /// Nobody uses the region any more, or will: its memory is let go of.
  void end();

  /// How the region is reached, for people; empty: not known yet.
  std::string describe() const;

 private:
  Status map(const UniqueFd& file);

  const RegionInfo region_;
  const std::uint64_t offset_;
  std::atomic<bool> asked_{false};
  std::atomic<std::byte*> mapped_{nullptr};
  mutable Mutex mutex_;
  MappedFile memory_ P2P_GUARDED_BY(mutex_);
  std::string refused_ P2P_GUARDED_BY(mutex_);  // why it is not mapped
  bool over_ P2P_GUARDED_BY(mutex_) = false;
};

/// A region of the peer's, as it is imported.
class PeerRegion : public RemoteKey {
 public:
  /// `exported` is what `export_shared` of the peer has made. kProtocol if it cannot be.
  static Result<std::unique_ptr<RemoteKey>> import(const RegionInfo& region, ByteView exported);

  /// Null: it was not allocated to be shared.
  const std::shared_ptr<PeerMapping>& mapping() const { return mapping_; }

  void retire() const override {
    if (mapping_) mapping_->end();
  }

 private:
  PeerRegion(const RegionInfo& region, std::shared_ptr<PeerMapping> mapping)
      : RemoteKey(region), mapping_(std::move(mapping)) {}

  const std::shared_ptr<PeerMapping> mapping_;
};

/// What peers are told of a region: where in its file it begins; nothing where it has none.
Bytes export_shared(const RegionInfo& region);

/// A question for a file, and who is to have the answer.
class FileQuestion {
 public:
  explicit FileQuestion(std::shared_ptr<PeerMapping> about) : about_(std::move(about)) {}
  FileQuestion(FileQuestion&&) noexcept = default;
  FileQuestion& operator=(FileQuestion&&) = delete;
  ~FileQuestion() {
    if (about_) about_->stop_asking();
  }

  Bytes encode() const;

  /// It was answered.
  void answer(const Result<UniqueFd>& file) { std::exchange(about_, nullptr)->take(file); }

 private:
  std::shared_ptr<PeerMapping> about_;
};

/// By a ring of requests: which region's file is wanted. Byte table in docs/wire.md.
struct WantFile {
  RegionId region{};
  RegionKey key{};
  std::uint64_t base = 0;
  std::uint64_t size = 0;
};

/// The answer, behind the descriptor, which has gone by the socket if there is one.
struct FileAnswer {
  bool given = false;
};

Bytes encode(const WantFile& want);
Bytes encode(const FileAnswer& answer);

/// Nothing for a message of another kind; kProtocol for one that cannot be read.
using FileMessage = std::variant<WantFile, FileAnswer>;
Result<std::optional<FileMessage>> decode_file_message(ByteView bytes);

}  // namespace p2p::cma
