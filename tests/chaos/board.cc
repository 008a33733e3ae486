// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace p2p::chaos {
namespace {

constexpr std::size_t kEndingBytes = sizeof(Ending) * Board::kEndings;
constexpr std::size_t kBytes = kEndingBytes + Board::kArenaBytes;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "two processes share it");

}  // namespace

Board::Board() {
  fd_ = ::memfd_create("chaos", MFD_CLOEXEC);
  if (fd_ < 0 || ::ftruncate(fd_, kBytes) != 0) throw std::runtime_error("make shared memory");
  map(fd_);
}

Board::Board(const std::string& path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) throw std::runtime_error("open " + path);
  map(fd_);
}

Board::~Board() {
  ::munmap(endings_.data(), kBytes);
  ::close(fd_);
}

std::string Board::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_); }

void Board::map(int fd) {
  void* const address = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) throw std::runtime_error("map shared memory");
  endings_ = {static_cast<Ending*>(address), kEndings};
  arena_ = {static_cast<std::byte*>(address) + kEndingBytes, kArenaBytes};
}

}  // namespace p2p::chaos
