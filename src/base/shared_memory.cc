// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/mutex.h"

namespace p2p {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The memory of this process that is shared, by where it begins.
struct Known {
  Birthplace birthplace;
  Mutex mutex;
  std::map<const std::byte*, std::weak_ptr<const SharedMemory>> memories P2P_GUARDED_BY(mutex);
};

constinit std::atomic<Known*> latest{nullptr};  // memory may be freed after the globals of this library

// A forked process has its own: in that of its parent the lock may be held for ever, and the files are
// closed.
Known& known() {
  Known* all = latest.load();
  while (all == nullptr || all->birthplace.left()) {
    auto made = std::make_unique<Known>();
    if (latest.compare_exchange_strong(all, made.get())) all = made.release();
  }
  return *all;
}

}  // namespace

Status check_file_size(std::uint64_t bytes) {
  rlimit largest{};
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur >= bytes) return {};
  return fail(ErrorCode::kUnavailable, "make a file of {} bytes in memory: RLIMIT_FSIZE forbids it", bytes);
}

Result<UniqueFd> make_sealed_file(const char* name, std::uint64_t bytes) {
  // Linux 6.3 asks in its log for this one; older ones do not know it.
  constexpr unsigned kNotExecutable = 8;
  if (Status may = check_file_size(bytes); !may) return tl::unexpected(std::move(may.error()));
  UniqueFd made = UniqueFd::of(::memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNotExecutable);
  if (!made) made = UniqueFd::of(::memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (!made) return tl::unexpected(system_error("make a file in memory: memfd_create"));
  const bool possible = bytes <= std::numeric_limits<off_t>::max();
  if (!possible || ::ftruncate(made.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(made.get(), F_ADD_SEALS, kSeals) != 0) {
    const int why = possible ? errno : EFBIG;
    return tl::unexpected(system_error(fmt::format("give a file in memory {} bytes for good", bytes), why));
  }
  return made;
}

// Only files made to be sealed have seals: those in memory.
Result<std::uint64_t> size_of_sealed_file(const UniqueFd& file) {
  struct stat status{};
  const int seals = file ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0 || status.st_size < 0) {
    return fail(ErrorCode::kProtocol, "no file in memory of a size that stays");
  }
  return static_cast<std::uint64_t>(status.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
}

Result<MappedFile> MappedFile::map(const UniqueFd& file, std::uint64_t offset, std::size_t bytes) {
  const std::size_t within = offset % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  MappedFile made;
  made.bytes_ = within + bytes;
  void* const mapped = ::mmap(nullptr, made.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                              static_cast<off_t>(offset - within));
  if (mapped == MAP_FAILED) {
    return tl::unexpected(system_error(fmt::format("map {} bytes of a file in memory", bytes)));
  }
  made.mapped_ = static_cast<std::byte*>(mapped);
  made.data_ = made.mapped_ + within;
  return made;
}

SharedMemory::SharedMemory(UniqueFd file, MappedFile memory, std::size_t size)
    : file_(std::move(file)), memory_(std::move(memory)), size_(size) {}

Result<std::shared_ptr<const SharedMemory>> SharedMemory::create(std::size_t bytes) {
  if (bytes == 0) return fail(ErrorCode::kInvalidArgument, "allocate 0 bytes to share");
  auto file = make_sealed_file("p2p-memory", bytes);
  if (!file) return tl::unexpected(std::move(file.error()));
  auto mapped = MappedFile::map(*file, 0, bytes);
  if (!mapped) return tl::unexpected(std::move(mapped.error()));
  // Fewer faults where the system has large pages for shared memory; it need not.
  static_cast<void>(::madvise(mapped->data(), bytes, MADV_HUGEPAGE));
  std::shared_ptr<const SharedMemory> made(new SharedMemory(std::move(*file), std::move(*mapped), bytes));
  Known& all = known();
  const MutexLock lock(all.mutex);
  all.memories.insert_or_assign(made->data(), made);
  return made;
}

// Before the range is given back, so that nobody else has it by then.
SharedMemory::~SharedMemory() {
  Known& all = known();
  const MutexLock lock(all.mutex);
  all.memories.erase(data());
}

std::shared_ptr<const SharedMemory> SharedMemory::find(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  Known& all = known();
  std::shared_ptr<const SharedMemory> found;  // its end takes the lock
  {
    const MutexLock lock(all.mutex);
    const auto after = all.memories.upper_bound(begin);
    if (after != all.memories.begin()) found = std::prev(after)->second.lock();
  }
  if (!found) return nullptr;
  const auto offset = static_cast<std::size_t>(begin - found->data());
  return offset <= found->size() && bytes <= found->size() - offset ? found : nullptr;
}

}  // namespace p2p
