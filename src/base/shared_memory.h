// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"
#include "p2p/result.h"

/// Memory that processes share by a descriptor. The file behind it has a size that nobody can change any
/// more, so that no process which has checked it and maps it finds the end of it missing.
namespace p2p {

/// kUnavailable where the system would end this process for making a file so large (RLIMIT_FSIZE).
Status check_file_size(std::uint64_t bytes);

/// A new file in memory. `name` is what the system shows of it. What nobody uses of it takes no memory.
Result<UniqueFd> make_sealed_file(const char* name, std::uint64_t bytes);

/// Its size; kProtocol for a descriptor of anything but a file as `make_sealed_file` makes it.
Result<std::uint64_t> size_of_sealed_file(const UniqueFd& file);

/// A part of a file, mapped. The file stays for as long as it is, whoever closes it.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  /// `bytes` from `offset` on, which lie within it.
  static Result<MappedFile> map(const UniqueFd& file, std::uint64_t offset, std::size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::byte* mapped_ = nullptr;  ///< from the begin of a page on
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  ///< that are mapped
};

/// Memory of this process that others map once they are given its file. Thread-safe.
class SharedMemory {
 public:
  static Result<std::shared_ptr<const SharedMemory>> create(std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// The one that all of the range lies in; null: none.
  static std::shared_ptr<const SharedMemory> find(const void* data, std::size_t bytes);

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return size_; }
  const UniqueFd& file() const { return file_; }

 private:
  SharedMemory(UniqueFd file, MappedFile memory, std::size_t size);

  const UniqueFd file_;
  const MappedFile memory_;
  const std::size_t size_;
};

}  // namespace p2p
