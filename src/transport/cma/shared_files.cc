// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/shared_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/underlying.h"
#include "transport/copy_request.h"

namespace p2p::cma {
namespace {

enum FileKind : std::uint8_t { kWant = kFirstOwnKind, kAnswer };

}  // namespace

void PeerMapping::take(const Result<UniqueFd>& file) {
  const Status mapped = file ? map(*file) : tl::unexpected(file.error());
  if (mapped) return;
  const MutexLock lock(mutex_);
  refused_ = mapped.error().message;
}

Status PeerMapping::map(const UniqueFd& file) {
  const auto bytes = size_of_sealed_file(file);
  if (!bytes) return tl::unexpected(bytes.error());
  if (offset_ > *bytes || region_.size > *bytes - offset_) {
    return fail(ErrorCode::kProtocol, "its file has {} bytes, and is to have {} from byte {} on", *bytes,
                region_.size, offset_);
  }
  auto memory = MappedFile::map(file, offset_, region_.size);
  if (!memory) return tl::unexpected(std::move(memory.error()));
  const MutexLock lock(mutex_);
  if (over_) return {};
  memory_ = std::move(*memory);
  mapped_.store(memory_.data(), std::memory_order_release);
  return {};
}

void PeerMapping::end() {
  const MutexLock lock(mutex_);
  over_ = true;
  mapped_ = nullptr;
  memory_ = MappedFile();
}

std::string PeerMapping::describe() const {
  if (mapped_.load(std::memory_order_acquire) != nullptr) return "the peer's region is mapped here";
  const MutexLock lock(mutex_);
  return refused_.empty() ? "" : "the peer's region could not be mapped here: " + refused_;
}

Result<std::unique_ptr<RemoteKey>> PeerRegion::import(const RegionInfo& region, ByteView exported) {
  ByteReader in(exported);
  std::shared_ptr<PeerMapping> mapping;
  if (!exported.empty()) mapping = std::make_shared<PeerMapping>(region, in.get<std::uint64_t>());
  if (!in.ok() || in.left() != 0) {
    return fail(ErrorCode::kProtocol, "import region {} with cma: {} bytes that cannot be read",
                to_underlying(region.id), exported.size());
  }
  return std::unique_ptr<RemoteKey>(new PeerRegion(region, std::move(mapping)));
}

Bytes export_shared(const RegionInfo& region) {
  Bytes bytes;
  if (!region.shared) return bytes;
  ByteWriter out(bytes);
  out.put(static_cast<std::uint64_t>(region.base - region.shared->data()));
  return bytes;
}

Bytes FileQuestion::encode() const {
  const RegionInfo& region = about_->region();
  return cma::encode(
      WantFile{region.id, region.key, reinterpret_cast<std::uint64_t>(region.base), region.size});
}

Bytes encode(const WantFile& want) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::uint8_t{kWant});
  out.put(to_underlying(want.region));
  out.put(ByteView(want.key));
  out.put(want.base);
  out.put(want.size);
  return bytes;
}

Bytes encode(const FileAnswer& answer) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::uint8_t{kAnswer});
  out.put(static_cast<std::uint8_t>(answer.given));
  return bytes;
}

Result<std::optional<FileMessage>> decode_file_message(ByteView bytes) {
  ByteReader in(bytes);
  const auto kind = in.get<std::uint8_t>();
  std::optional<FileMessage> message;
  if (!in.ok() || (kind != kWant && kind != kAnswer)) return message;
  bool good = true;
  if (kind == kWant) {
    WantFile want;
    want.region = RegionId{in.get<std::uint32_t>()};
    const ByteView key = in.take(want.key.size());
    if (in.ok()) std::ranges::copy(key, want.key.begin());
    want.base = in.get<std::uint64_t>();
    want.size = in.get<std::uint64_t>();
    message = want;
  } else {
    const auto given = in.get<std::uint8_t>();
    good = given <= 1;
    message = FileAnswer{given == 1};
  }
  if (in.ok() && in.left() == 0 && good) return message;
  return fail(ErrorCode::kProtocol, "a message about a file that cannot be read");
}

}  // namespace p2p::cma
