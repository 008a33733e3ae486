// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/safe_copy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/io_vector.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace p2p {
namespace {

// Stays in a processor's cache.
constexpr std::size_t kRoomBytes = std::size_t{256} << 10;
constexpr std::size_t kPieces = 64;            // of one system call
constexpr std::size_t kPage = 4096;            // or a multiple of it
constexpr int kPopulateRead = 22;              // MADV_POPULATE_READ, of Linux 5.14; older headers lack it
constexpr int kPopulateWrite = 23;             // and its twin
constexpr std::size_t kManyPages = 4 * kPage;  // less is looked at sooner together with other pieces

/// A thread's room: a file in memory, mapped. Reading that file copies out of the room, and writing it copies
/// into the room. Where the system refuses such files it is common memory, and process_vm_readv and its twin
/// copy, which takes twice as long.
class Room {
 public:
  Room() { make(); }
  ~Room() { unmap(); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  static Room& here() {
    thread_local Room room;
    if (room.birthplace_.left()) room.make();  // a forked child shares the file with its parent
    return room;
  }

  std::byte* data() { return data_; }

  /// Where in the room `at` is, if it is.
  std::optional<std::size_t> offset_of(const std::byte* at) const {
    const std::less<const std::byte*> before;
    if (before(at, data_) || !before(at, data_ + kRoomBytes)) return std::nullopt;
    return static_cast<std::size_t>(at - data_);
  }

  /// What lies in the room from byte `at` on to the pieces, and back. How many bytes; 0 or less: none.
  ssize_t empty(std::span<const iovec> to, std::size_t at = 0) {
    if (!file_) return by_process(to, at, true);
    const auto where = static_cast<off_t>(at);
    if (to.size() == 1) return ::pread(file_.get(), to.front().iov_base, to.front().iov_len, where);
    return ::preadv(file_.get(), to.data(), static_cast<int>(to.size()), where);
  }
  ssize_t fill(std::span<const iovec> from, std::size_t at = 0) {
    if (!file_) return by_process(from, at, false);
    const auto where = static_cast<off_t>(at);
    if (from.size() == 1) return ::pwrite(file_.get(), from.front().iov_base, from.front().iov_len, where);
    return ::pwritev(file_.get(), from.data(), static_cast<int>(from.size()), where);
  }

 private:
  void make();
  void unmap();
  ssize_t by_process(std::span<const iovec> pieces, std::size_t at, bool out);

  Birthplace birthplace_;
  UniqueFd file_;
  std::vector<std::byte> memory_;  // without a file
  std::byte* data_ = nullptr;
};

void Room::unmap() {
  if (file_ && data_ != nullptr) ::munmap(data_, kRoomBytes);
  data_ = nullptr;
}

void Room::make() {
  unmap();
  birthplace_ = Birthplace();
  file_ = check_file_size(kRoomBytes) ? UniqueFd::of(::memfd_create, "p2p-copies", MFD_CLOEXEC) : UniqueFd();
  if (file_ && ::ftruncate(file_.get(), kRoomBytes) == 0) {
    void* mapped = ::mmap(nullptr, kRoomBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (mapped != MAP_FAILED) {
      data_ = static_cast<std::byte*>(mapped);
      return;
    }
  }
  file_.reset();
  memory_.resize(kRoomBytes);
  data_ = memory_.data();
}

ssize_t Room::by_process(std::span<const iovec> pieces, std::size_t at, bool out) {
  static std::atomic<bool> denied{false};
  const std::size_t bytes = total_bytes(pieces);
  const iovec room{data_ + at, bytes};
  if (!denied.load(std::memory_order_relaxed)) {
    const auto copy = out ? ::process_vm_writev : ::process_vm_readv;
    const ssize_t copied = copy(::getpid(), &room, 1, pieces.data(), pieces.size(), 0);
    if (copied >= 0 || (errno != EPERM && errno != ENOSYS)) return copied;
    if (!denied.exchange(true)) {
      log(LogLevel::kWarning,
          "memory is copied without a check: neither memfd_create nor process_vm_readv is allowed here; "
          "registered memory that turns bad ends the process");
    }
  }
  std::byte* mine = data_ + at;
  for (const iovec& piece : pieces) {
    std::memcpy(out ? piece.iov_base : mine, out ? mine : piece.iov_base, piece.iov_len);
    mine += piece.iov_len;
  }
  return static_cast<ssize_t>(bytes);
}

/// True if all pages of the piece can be read, or written; false also where the system cannot tell.
bool populate(const iovec& piece, int advice) {
  const auto start = reinterpret_cast<std::uintptr_t>(piece.iov_base);
  const std::uintptr_t first = start / kPage * kPage;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): made from a pointer
  return ::madvise(reinterpret_cast<void*>(first), start + piece.iov_len - first, advice) == 0;
}

/// Calls `move(pieces, bytes, done)`, which answers as a system call, for some of the pieces after the other.
template <class Move>
std::size_t each_part(std::span<const iovec> pieces, std::size_t skip, std::size_t bytes, Move move) {
  std::array<iovec, kPieces> some;
  std::size_t done = 0;
  while (done != bytes) {
    for (; !pieces.empty() && skip >= pieces.front().iov_len; pieces = pieces.subspan(1)) {
      skip -= pieces.front().iov_len;
    }
    if (pieces.empty()) return done;
    const std::size_t most = std::min(kRoomBytes, bytes - done);
    std::size_t count = 0;
    std::size_t size = 0;
    for (; count != kPieces && count != pieces.size() && size != most; ++count) {
      const std::size_t before = count == 0 ? skip : 0;
      auto* const data = static_cast<std::byte*>(pieces[count].iov_base) + before;
      some[count] = {data, std::min(pieces[count].iov_len - before, most - size)};
      size += some[count].iov_len;
    }
    const ssize_t moved = move(std::span<const iovec>(some).first(count), size, done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return done;
    done += static_cast<std::size_t>(moved);
    skip += static_cast<std::size_t>(moved);
  }
  return done;
}

std::size_t system_copy_out(std::span<const iovec> to, const std::byte* from, std::size_t bytes,
                            std::size_t skip) {
  Room& room = Room::here();
  const auto inside = room.offset_of(from);
  return each_part(to, skip, bytes, [&](std::span<const iovec> some, std::size_t size, std::size_t done) {
    if (inside) return room.empty(some, *inside + done);
    std::memmove(room.data(), from + done, size);
    return room.empty(some);
  });
}

std::size_t system_copy_in(std::byte* to, std::span<const iovec> from, std::size_t bytes, std::size_t skip) {
  Room& room = Room::here();
  const auto inside = room.offset_of(to);
  return each_part(from, skip, bytes,
                   [&](std::span<const iovec> some, std::size_t /*size*/, std::size_t done) {
                     if (inside) return room.fill(some, *inside + done);
                     const ssize_t moved = room.fill(some);
                     if (moved > 0) std::memcpy(to + done, room.data(), static_cast<std::size_t>(moved));
                     return moved;
                   });
}

}  // namespace

// What the processor meets and cannot copy, the system may in part: it ends at the first bad byte.
std::size_t copy_out(std::span<const iovec> to, const std::byte* from, std::size_t bytes, std::size_t skip) {
  const std::size_t quick = guarded_scatter(to, from, bytes, skip);
  return quick == bytes ? bytes : quick + system_copy_out(to, from + quick, bytes - quick, skip + quick);
}

std::size_t copy_in(std::byte* to, std::span<const iovec> from, std::size_t bytes, std::size_t skip) {
  const std::size_t quick = guarded_gather(to, from, bytes, skip);
  return quick == bytes ? bytes : quick + system_copy_in(to + quick, from, bytes - quick, skip + quick);
}

bool land(std::span<const iovec> to, const std::byte* from, std::size_t bytes, std::size_t skip) {
  bool all = true;
  for (std::size_t done = 0; done != bytes;) {
    done += copy_out(to, from + done, bytes - done, skip + done);
    if (done == bytes) break;
    all = false;
    std::size_t end = 0;  // of the piece that is bad
    for (std::size_t i = 0; end <= skip + done; ++i) end += to[i].iov_len;
    done = std::min(end - skip, bytes);
  }
  return all;
}

bool copy_across(std::byte* to, const std::byte* from, std::size_t bytes) {
  Room& room = Room::here();
  const bool backwards = to > from && to < from + bytes;
  for (std::size_t done = 0; done != bytes;) {
    const std::size_t size = std::min(kRoomBytes, bytes - done);
    const std::size_t at = backwards ? bytes - done - size : done;
    const iovec source{const_cast<std::byte*>(from) + at, size};
    const iovec target{to + at, size};
    const auto whole = static_cast<ssize_t>(size);
    if (room.fill({&source, 1}) != whole || room.empty({&target, 1}) != whole) return false;
    done += size;
  }
  return true;
}

bool readable(std::span<const iovec> pieces) {
  Room& room = Room::here();
  std::array<iovec, kPieces> bytes;
  std::size_t count = 0;
  for (const iovec& piece : pieces) {
    if (const auto good = guarded_look(piece.iov_base, piece.iov_len)) {
      if (!*good) return false;
      continue;
    }
    // Of tables of pages alone, which costs a third.
    if (piece.iov_len >= kManyPages && populate(piece, kPopulateRead)) continue;
    auto* const end = static_cast<std::byte*>(piece.iov_base) + piece.iov_len;
    for (auto* at = static_cast<std::byte*>(piece.iov_base); at < end;) {
      bytes[count++] = {at, 1};
      at += kPage - reinterpret_cast<std::uintptr_t>(at) % kPage;
      if (count != kPieces) continue;
      if (room.fill(bytes) != static_cast<ssize_t>(kPieces)) return false;
      count = 0;
    }
  }
  return count == 0 || room.fill(std::span(bytes).first(count)) == static_cast<ssize_t>(count);
}

bool writable(const iovec& piece) {
  static const bool known = populate({Room::here().data(), 1}, kPopulateWrite);
  if (!known) return true;
  if (!populate({piece.iov_base, 1}, kPopulateWrite)) return false;  // tells memory of devices
  const auto good = guarded_touch(piece.iov_base, piece.iov_len);
  return good ? *good : populate(piece, kPopulateWrite);
}

std::span<std::byte> copy_room() { return {Room::here().data(), kRoomBytes}; }

Error bad_memory(std::string_view attempted, const void* data, std::size_t bytes) {
  return system_error(fmt::format("{} {} bytes at {}, which are not there any more, protected, or behind the "
                                  "end of their file",
                                  attempted, bytes, data),
                      EFAULT);
}

Error bad_memory(std::string_view attempted, std::span<const iovec> pieces) {
  const void* const first = pieces.empty() ? nullptr : pieces.front().iov_base;
  return bad_memory(attempted, first, total_bytes(pieces));
}

}  // namespace p2p
