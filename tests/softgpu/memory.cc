// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "devices.h"

#ifdef P2P_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace softgpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr const char* kName = "/memfd:softgpu";  // as /proc shows it
constexpr std::uint64_t kMagic = 0x55504774666f53;

/// Behind the bytes of a memfd: whose memory it is.
struct Label {
  std::uint64_t magic = kMagic;
  Uuid uuid{};
};

// Addresses of devices, which the processor cannot touch. What is not among them is the program's own memory.
constexpr std::size_t kArea = std::size_t{256} << 30;
constexpr std::size_t kStep = std::size_t{2} << 20;

std::uintptr_t area() {
  static const std::uintptr_t begin = [] {
    void* const made = ::mmap(nullptr, kArea, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return made == MAP_FAILED ? 0 : (reinterpret_cast<std::uintptr_t>(made) + kStep - 1) / kStep * kStep;
  }();
  return begin;
}

bool is_device_address(std::uintptr_t address) { return address >= area() && address - area() < kArea; }

/// A device's copies are no thread's: what of them is a race is for the engine's protocol to say, and part of
/// it is meant, such as copies that only warm up.
class NoThread {
 public:
#ifdef P2P_TSAN
  NoThread() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~NoThread() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  NoThread() {}
  ~NoThread() {}
#endif
  NoThread(const NoThread&) = delete;
  NoThread& operator=(const NoThread&) = delete;
};

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::shared_ptr<Physical> Physical::make(int device, std::size_t size, bool exportable) {
  const std::size_t whole = (size + kPage - 1) / kPage * kPage;
  return adopt(::memfd_create("softgpu", MFD_CLOEXEC), device, whole, exportable);
}

std::shared_ptr<Physical> Physical::adopt(int fd, int device, std::size_t size, bool exportable) {
  const std::shared_ptr<Physical> made(new Physical);
  made->fd_ = fd;
  made->device_ = device;
  made->size_ = size;
  made->exportable_ = exportable;
  const Label label{.uuid = uuid_of(device)};
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size + kPage)) != 0) return nullptr;
  if (::pwrite(fd, &label, sizeof label, static_cast<off_t>(size)) != sizeof label) return nullptr;
  return made->map() ? made : nullptr;
}

std::shared_ptr<Physical> Physical::import(int fd, bool& hidden) {
  const std::shared_ptr<Physical> made(new Physical);
  made->fd_ = fd;
  struct stat file{};
  Label label{};
  if (::fstat(fd, &file) != 0 || file.st_size <= static_cast<off_t>(kPage)) return nullptr;
  made->size_ = static_cast<std::size_t>(file.st_size) - kPage;
  if (::pread(fd, &label, sizeof label, static_cast<off_t>(made->size_)) != sizeof label ||
      label.magic != kMagic) {
    return nullptr;
  }
  hidden = !is_in_this_machine(label.uuid);
  if (hidden) return nullptr;
  made->device_ = find_device(label.uuid).value_or(0);
  made->exportable_ = true;
  return made->map() ? made : nullptr;
}

bool Physical::map() {
  void* const data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(data);
  id_ = next_id();
  return true;
}

std::size_t Physical::bytes() {
  namespace fs = std::filesystem;
  std::map<ino_t, std::size_t> sizes;
  std::error_code gone;  // processes end meanwhile
  for (const auto& process : fs::directory_iterator("/proc", gone)) {
    for (const auto& link : fs::directory_iterator(process.path() / "fd", gone)) {
      struct stat file{};
      if (!fs::read_symlink(link, gone).string().starts_with(kName)) continue;
      if (::stat(link.path().c_str(), &file) == 0)
        sizes[file.st_ino] = static_cast<std::size_t>(file.st_size);
    }
  }
  std::size_t sum = 0;
  for (const auto& [inode, size] : sizes) sum += size;
  return sum;
}

Physical::~Physical() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (fd_ >= 0) ::close(fd_);
}

Addresses& Addresses::of_process() {
  static Addresses* const all = new Addresses;  // for threads that outlive main
  return *all;
}

// First fit: memory that was freed comes again at its address, as GPUs' memory mostly does.
std::uintptr_t Addresses::reserve(std::size_t size) {
  size = (size + kStep - 1) / kStep * kStep;
  const std::lock_guard lock(mutex_);
  std::uintptr_t at = area();
  for (const auto& [begin, taken] : reserved_) {
    if (begin - at >= size) break;
    at = begin + taken;
  }
  if (area() == 0 || at + size > area() + kArea - kStep) return 0;
  reserved_.emplace(at, size);
  return at;
}

void Addresses::give_back(std::uintptr_t base) {
  const std::lock_guard lock(mutex_);
  reserved_.erase(base);
}

void Addresses::add(Range range) {
  const std::lock_guard lock(mutex_);
  range.id = ++last_id_;
  const std::uintptr_t base = range.base;
  ranges_.insert_or_assign(base, std::move(range));
}

bool Addresses::remove(std::uintptr_t base) {
  const std::lock_guard lock(mutex_);
  return ranges_.erase(base) != 0;
}

std::optional<Range> Addresses::find(std::uintptr_t address) {
  const std::lock_guard lock(mutex_);
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return std::nullopt;
  --at;
  if (!at->second.contains(address)) return std::nullopt;
  return at->second;
}

Piece piece_at(std::uintptr_t address, std::size_t size) {
  if (!is_device_address(address)) return {reinterpret_cast<std::byte*>(address), size, nullptr};
  const auto range = Addresses::of_process().find(address);
  if (!range || !range->physical || !range->reachable) return {};
  const std::size_t offset = address - range->base;
  return {range->physical->data() + offset, std::min(size, range->size - offset), range->physical};
}

bool are_there(std::uintptr_t address, std::size_t size) {
  while (size != 0) {
    const Piece piece = piece_at(address, size);
    if (piece.size == 0) return false;
    address += piece.size;
    size -= piece.size;
  }
  return true;
}

bool copy(std::uintptr_t target, std::uintptr_t source, std::size_t size) {
  const NoThread device;
  while (size != 0) {
    const Piece to = piece_at(target, size);
    const Piece from = piece_at(source, size);
    const std::size_t part = std::min(to.size, from.size);
    if (part == 0) return false;
    std::memmove(to.data, from.data, part);
    target += part;
    source += part;
    size -= part;
  }
  return true;
}

bool set(std::uintptr_t target, unsigned char value, std::size_t size) {
  const NoThread device;
  for (std::size_t at = 0; at != size;) {
    const Piece piece = piece_at(target + at, size - at);
    if (piece.size == 0) return false;
    std::memset(piece.data, value, piece.size);
    at += piece.size;
  }
  return true;
}

bool copy_by_kernel(std::uintptr_t target, std::uintptr_t source, std::size_t size) {
  for (const std::uintptr_t end : {target, source}) {
    if (size != 0 && !is_device_address(end) && !Addresses::of_process().find(end)) return false;
  }
  return copy(target, source, size);
}

}  // namespace softgpu
