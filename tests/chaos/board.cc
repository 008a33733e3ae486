// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "board.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sstream>
#include <stdexcept>

namespace p2p::chaos {
namespace {

constexpr std::size_t kEndingBytes = sizeof(Ending) * Board::kEndings;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "two processes share it");

/// What is mapped side by side comes in parts, of the least size that GPUs have.
std::size_t parts_of(const std::string& gpu) {
  const bool mapped = gpu.starts_with("mapped") || gpu.starts_with("private");
  return mapped ? Board::kArenaBytes / (std::size_t{2} << 20) : 1;
}

int make(std::size_t size) {
  const int file = ::memfd_create("chaos", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(size)) != 0)
    throw std::runtime_error("make shared memory");
  return file;
}

void* map(int file, std::size_t size, void* at = nullptr, std::size_t from = 0) {
  const int flags = MAP_SHARED | (at != nullptr ? MAP_FIXED : 0);
  void* const address = ::mmap(at, size, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(from));
  if (address == MAP_FAILED) throw std::runtime_error("map shared memory");
  return address;
}

/// Makes the files memory of an emulated GPU of this process.
void* lend_to_gpu(const std::string& gpu, const std::vector<int>& files, std::size_t each) {
  using Adopt = void*(const char* kind, const int* files, std::size_t count, std::size_t each);
  auto* const adopt = reinterpret_cast<Adopt*>(::dlsym(RTLD_DEFAULT, "softgpu_adopt"));
  void* const data = adopt == nullptr ? nullptr : adopt(gpu.c_str(), files.data(), files.size(), each);
  if (data == nullptr)
    throw std::runtime_error("no emulated GPU takes " + gpu + " (built without P2P_SOFT_GPU?)");
  return data;
}

}  // namespace

Board::Board(const std::string& gpu) : gpu_(gpu) {
  files_.push_back(make(kEndingBytes));
  const std::size_t parts = parts_of(gpu);
  for (std::size_t part = 0; part != parts; ++part) files_.push_back(make(kArenaBytes / parts));
  map_endings();
  map_arena();
}

Board::Board(Worker /*worker*/, const std::string& name) {
  std::istringstream words(name);
  std::getline(words, gpu_, ',');
  for (std::string path; std::getline(words, path, ',');) {
    files_.push_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (files_.back() < 0) throw std::runtime_error("open " + path);
  }
  map_endings();
  if (gpu_.empty()) {
    map_arena();
    return;
  }
  const std::vector<int> parts(files_.begin() + 1, files_.end());
  arena_ = {static_cast<std::byte*>(lend_to_gpu(gpu_, parts, kArenaBytes / parts.size())), kArenaBytes};
}

Board::~Board() {
  ::munmap(endings_.data(), kEndingBytes);
  if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
  for (const int file : files_) ::close(file);
}

std::string Board::name() const {
  std::string words = gpu_;
  for (const int file : files_) words += fmt::format(",/proc/{}/fd/{}", ::getpid(), file);
  return words;
}

void Board::mend(std::size_t offset, std::size_t size) const {
  map(files_.at(1), size, &mapped_[offset], offset);
}

void Board::map_endings() { endings_ = {static_cast<Ending*>(map(files_.front(), kEndingBytes)), kEndings}; }

void Board::map_arena() {
  // Low, where the system looks for room last, so that pages that are unmapped later stay holes.
  void* const low = reinterpret_cast<void*>(std::uintptr_t{1} << 32);
  void* const room = ::mmap(low, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::runtime_error("map shared memory");
  arena_ = mapped_ = {static_cast<std::byte*>(room), kArenaBytes};
  const std::size_t each = kArenaBytes / (files_.size() - 1);
  for (std::size_t i = 1; i != files_.size(); ++i) map(files_[i], each, &arena_[(i - 1) * each]);
}

}  // namespace p2p::chaos
