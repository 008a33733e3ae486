// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu_side.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <utility>

#include "support/bounds.h"
#include "support/command.h"
#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

// A prime: no size of a batch, a slot or a block divides it.
constexpr std::size_t kPeriod = 4194319;

const std::vector<std::byte>& pattern() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> made(kPeriod);
    std::mt19937_64 random(1);
    for (std::byte& byte : made) byte = static_cast<std::byte>(random() >> 32);
    return made;
  }();
  return bytes;
}

/// Calls `run` with each run of the pattern's bytes that makes up [from, from + size), and where it goes.
template <class Run>
void for_each_run(std::uint64_t seed, std::size_t from, std::size_t size, Run&& run) {
  for (std::size_t done = 0; done < size;) {
    const std::size_t at = (from + done + seed * 1000003) % kPeriod;
    const std::size_t length = std::min(size - done, kPeriod - at);
    run(done, std::span(pattern()).subspan(at, length));
    done += length;
  }
}

Process start(int window, const SidePlan& plan) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words{program, "--serve", std::to_string(window)};
  if (!plan.visible.empty()) words.insert(words.begin(), {"env", "CUDA_VISIBLE_DEVICES=" + plan.visible});
  if (plan.own_pids) {
    words.insert(words.begin(), {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"});
  }
  auto process = Process::spawn(words);
  if (!process) throw std::runtime_error("start a side: " + process.error().message);
  return std::move(*process);
}

}  // namespace

Window::Window() : descriptor_(::memfd_create("p2p-gpu-window", 0)) {
  if (descriptor_ < 0 || ::ftruncate(descriptor_, kBytes) != 0) throw std::runtime_error("make a window");
  map();
}

Window::Window(int descriptor) : descriptor_(descriptor) { map(); }

void Window::map() {
  void* const data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) throw std::runtime_error("map a window");
  bytes_ = {static_cast<std::byte*>(data), kBytes};
}

Window::Window(Window&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(std::exchange(other.bytes_, {})) {}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Window::~Window() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void copy_pattern(std::span<std::byte> into, std::uint64_t seed, std::size_t from) {
  for_each_run(seed, from, into.size(), [&](std::size_t at, std::span<const std::byte> run) {
    std::memcpy(into.data() + at, run.data(), run.size());
  });
}

Side::Side(const SidePlan& plan) : process_(start(window_.descriptor(), plan)) {
  port_ = static_cast<std::uint16_t>(
      number(fmt::format("endpoint {} {} {}", plan.transport.empty() ? "-" : plan.transport, plan.blocks,
                         plan.keepalive.count())));
}

void Side::begin(const std::string& command) {
  const Status written = process_.write_line(command);
  EXPECT_TRUE(is_ok(written));
  sound_ = sound_ && written;
  begun_ += written ? 1 : 0;
}

Result<std::string> Side::take_answer() {
  if (begun_ == 0 || !sound_)
    return tl::unexpected(Error{ErrorCode::kProtocol, "there is no answer to take"});
  const auto line = process_.read_line(2 * kLimit);
  sound_ = sound_ && line;
  --begun_;
  if (!line) return line;
  return parse_answer(*line);
}

Result<std::string> Side::finish() { return take_answer(); }

Result<std::string> Side::call(const std::string& command) {
  while (begun_ > 0 && sound_) static_cast<void>(take_answer());
  begin(command);
  return finish();
}

std::uint64_t Side::number(const std::string& command) {
  const auto answer = call(command);
  EXPECT_TRUE(is_ok(status_of(answer))) << command;
  std::uint64_t value = 0;
  if (answer) std::from_chars(answer->data(), answer->data() + answer->size(), value);
  return value;
}

std::uint64_t Side::post(const std::string& operation, std::span<const Piece> pieces, std::uint64_t times) {
  std::memcpy(window_.bytes().data(), pieces.data(), pieces.size_bytes());
  return number(fmt::format("post {} {} {}", operation, pieces.size(), times));
}

Result<std::uint64_t> Side::wait(std::uint64_t transfer) {
  const auto answer = call(fmt::format("wait {} {}", transfer, std::chrono::milliseconds(kLimit).count()));
  if (!answer) return tl::unexpected(answer.error());
  return Words(*answer).number();
}

Status Side::transfer(const std::string& operation, std::span<const Piece> pieces) {
  return status_of(wait(post(operation, pieces)));
}

Outcomes Side::outcomes(std::uint64_t first, std::uint64_t count, std::chrono::milliseconds within) {
  const auto answer = call(fmt::format("outcomes {} {} {}", first, count, within.count()));
  EXPECT_TRUE(is_ok(status_of(answer)));
  Words words(answer.value_or(""));
  Outcomes outcomes;
  outcomes.good = words.number();
  outcomes.bad = words.number();
  outcomes.unfinished = words.number();
  outcomes.silent = words.number();
  outcomes.codes = words.text();
  outcomes.message = words.rest();
  return outcomes;
}

void Side::kill() {
  process_.kill_now();
  sound_ = false;
}

SideMemory::SideMemory(Side& side, const std::string& place, std::size_t size, std::size_t base)
    : side_(&side), extent_(base + size) {
  const auto made = side.call(fmt::format("memory {} {} {}", place, size, base));
  if (!made) throw std::runtime_error(fmt::format("make memory of {}: {}", place, made.error().message));
  Words words(*made);
  index_ = static_cast<std::uint32_t>(words.number());
  const auto descriptor = from_hex(words.text());
  if (!descriptor) throw std::runtime_error("parse a descriptor: " + descriptor.error().message);
  descriptor_ = *descriptor;
  address_ = descriptor_.address - base;
  extent_ = words.number();
}

SideMemory::SideMemory(SideMemory&& other) noexcept
    : side_(std::exchange(other.side_, nullptr)),
      index_(other.index_),
      extent_(other.extent_),
      address_(other.address_),
      descriptor_(other.descriptor_) {}

SideMemory::~SideMemory() {
  if (side_ == nullptr || !side_->sound()) return;
  EXPECT_TRUE(is_ok(status_of(side_->call(fmt::format("free {}", index_)))));
}

std::uint32_t SideMemory::imported_by(Side& other) const {
  return static_cast<std::uint32_t>(other.number("import " + to_hex(descriptor_)));
}

std::chrono::microseconds SideMemory::import_time(Side& other) const {
  return std::chrono::microseconds(other.number("import_time " + to_hex(descriptor_)));
}

void SideMemory::put(std::size_t offset, std::span<const std::byte> bytes) const {
  const auto window = side_->window().bytes();
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t part = std::min(window.size(), bytes.size() - done);
    std::memcpy(window.data(), bytes.data() + done, part);
    ASSERT_TRUE(is_ok(status_of(side_->call(fmt::format("put {} {} {}", index_, offset + done, part)))));
    done += part;
  }
}

void SideMemory::set(std::size_t offset, std::size_t size, std::byte value) const {
  ASSERT_TRUE(is_ok(status_of(
      side_->call(fmt::format("set {} {} {} {}", index_, offset, size, static_cast<unsigned>(value))))));
}

void SideMemory::fill(std::uint64_t seed) const {
  const auto window = side_->window().bytes();
  for (std::size_t done = 0; done < extent_;) {
    const std::size_t part = std::min(window.size(), extent_ - done);
    copy_pattern(window.first(part), seed, done);
    ASSERT_TRUE(is_ok(status_of(side_->call(fmt::format("put {} {} {}", index_, done, part)))));
    done += part;
  }
}

// `differs` gets a position and the bytes from there on, and says where the first wrong one is.
template <class Compare>
::testing::AssertionResult SideMemory::compare(std::size_t offset, std::size_t size,
                                               Compare&& differs) const {
  const auto window = side_->window().bytes();
  for (std::size_t done = 0; done < size;) {
    const std::size_t part = std::min(window.size(), size - done);
    const auto got = side_->call(fmt::format("get {} {} {}", index_, offset + done, part));
    if (!got) return ::testing::AssertionFailure() << got.error().message;
    const std::size_t wrong = differs(done, std::span<const std::byte>(window.first(part)));
    if (wrong != part) return ::testing::AssertionFailure() << "wrong at " << offset + done + wrong;
    done += part;
  }
  return ::testing::AssertionSuccess();
}

namespace {

/// Their length if the bytes are the same.
std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return a.size();
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

}  // namespace

::testing::AssertionResult SideMemory::holds(std::size_t offset, std::span<const std::byte> bytes) const {
  return compare(offset, bytes.size(), [&](std::size_t at, std::span<const std::byte> got) {
    return first_difference(got, bytes.subspan(at, got.size()));
  });
}

::testing::AssertionResult SideMemory::holds_pattern(std::size_t offset, std::size_t size, std::uint64_t seed,
                                                     std::size_t from) const {
  return compare(offset, size, [&](std::size_t at, std::span<const std::byte> got) {
    std::size_t wrong = got.size();
    for_each_run(seed, from + at, got.size(), [&](std::size_t run_at, std::span<const std::byte> run) {
      if (wrong != got.size()) return;
      const std::size_t same = first_difference(got.subspan(run_at, run.size()), run);
      if (same != run.size()) wrong = run_at + same;
    });
    return wrong;
  });
}

::testing::AssertionResult SideMemory::is_set(std::size_t offset, std::size_t size, std::byte value) const {
  return compare(offset, size, [&](std::size_t, std::span<const std::byte> got) {
    const bool same =
        got.empty() || (got[0] == value && std::memcmp(got.data(), got.data() + 1, got.size() - 1) == 0);
    if (same) return got.size();
    return static_cast<std::size_t>(
        std::find_if(got.begin(), got.end(), [&](std::byte byte) { return byte != value; }) - got.begin());
  });
}

}  // namespace p2p::testing
