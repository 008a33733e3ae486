// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Device memory, on one side or both, over every transport that carries it. Each transport is listed with
// each pair of places; what this machine lacks is skipped with the reason.
#include "drivers/cuda/device.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "conformance/pair.h"
#include "drivers/cuda/memory.h"
#include "support/devices.h"

namespace p2p::conformance {
namespace {

constexpr std::array kBoth{Operation::kWrite, Operation::kRead};
constexpr std::size_t kGuard = 128;

/// -1: the host.
struct Places {
  int left = -1;
  int right = -1;
};

MemoryPlace place_of(int device) {
  return device < 0 ? MemoryPlace{} : MemoryPlace{MemoryKind::kCuda, device};
}

/// Registered memory in a place, with guard bytes around it. The transport outlives it.
class PlacedMemory {
 public:
  PlacedMemory(Transport& transport, int device, std::size_t size) : transport_(transport), size_(size) {
    if (device < 0) {
      host_.resize(size + 2 * kGuard);
      base_ = host_.data();
    } else {
      device_ = cuda::DeviceBuffer::allocate(device, size + 2 * kGuard).value();
      base_ = device_.data();
    }
    static std::uint32_t last = 1U << 20;
    RegionInfo info{.id = RegionId{++last}, .base = data(), .size = size, .place = place_of(device)};
    std::random_device random;
    for (std::byte& byte : info.key) byte = static_cast<std::byte>(random());
    registration_ = transport_.register_memory(info).value();
    put(Bytes(size));
  }

  ~PlacedMemory() {
    transport_.revoke_memory(*registration_);
    EXPECT_TRUE(registration_->wait_unaccessed(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  }
  PlacedMemory(const PlacedMemory&) = delete;
  PlacedMemory& operator=(const PlacedMemory&) = delete;

  std::byte* data() const { return base_ + kGuard; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data()); }
  const Registration* registration() const { return registration_.get(); }

  RegionOffer offer() const { return offer_of(transport_, *registration_); }

  void put(const Bytes& bytes) {
    Bytes all(kGuard, std::byte{0xa5});
    all.insert(all.end(), bytes.begin(), bytes.end());
    all.insert(all.end(), kGuard, std::byte{0xa5});
    move(base_, all.data(), all.size());
  }

  /// The bytes; a failure if a guard was written.
  Bytes get() const {
    Bytes all(size_ + 2 * kGuard);
    move(all.data(), base_, all.size());
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xa5}; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, is_guard));
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), is_guard));
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  void move(std::byte* target, const std::byte* source, std::size_t size) const {
    if (device_.data() == nullptr) {
      std::copy_n(source, size, target);
    } else {
      const Status copied = cuda::copy_now(target, source, size);
      ASSERT_TRUE(copied) << copied.error().message;
    }
  }

  Transport& transport_;
  const std::size_t size_;
  Bytes host_;
  cuda::DeviceBuffer device_;
  std::byte* base_ = nullptr;
  std::shared_ptr<Registration> registration_;
};

struct Piece {
  std::size_t local = 0;
  std::size_t remote = 0;
  std::size_t size = 0;
};

class DeviceConformance : public ::testing::TestWithParam<std::tuple<TransportRegistry::Entry, Places>> {
 protected:
  void SetUp() override {
    const auto& [entry, places] = GetParam();
    const auto transport = entry.make(options(), test_devices());
    if (const Status usable = transport->probe(); !usable) GTEST_SKIP() << usable.error().message;
    if (!transport->carries(place_of(places.left), place_of(places.right))) {
      GTEST_SKIP() << "it does not carry that way";
    }
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    const int most = std::max(places.left, places.right);
    if (most >= cuda::device_count()) GTEST_SKIP() << "there is no CUDA device " << most;
    pair_ = std::make_unique<Pair>(entry);
    const Status connected = pair_->connect();
    ASSERT_TRUE(connected) << connected.error().message;
  }

  void move_and_check(Operation operation, PlacedMemory& local, PlacedMemory& remote, std::size_t size,
                      const std::vector<Piece>& pieces) {
    const bool write = operation == Operation::kWrite;
    Bytes sent(size);
    fill_pattern(sent, ++seed_);
    Bytes expected(size, std::byte{0xee});
    (write ? local : remote).put(sent);
    (write ? remote : local).put(expected);
    const auto key = pair_->left.import(remote.offer());
    std::vector<Segment> segments;
    for (const Piece& piece : pieces) {
      segments.push_back({local.data() + piece.local, remote.address() + piece.remote, piece.size,
                          local.registration(), key.get()});
      const std::size_t from = write ? piece.local : piece.remote;
      const std::size_t to = write ? piece.remote : piece.local;
      std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(from), piece.size,
                  expected.begin() + static_cast<std::ptrdiff_t>(to));
    }
    const Status status = pair_->left.transfer(operation, std::move(segments));
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_TRUE((write ? remote : local).get() == expected);
    ASSERT_TRUE((write ? local : remote).get() == sent);
  }

  Peer& left() { return pair_->left; }
  Peer& right() { return pair_->right; }
  int left_device() const { return std::get<Places>(GetParam()).left; }
  int right_device() const { return std::get<Places>(GetParam()).right; }

  std::unique_ptr<Pair> pair_;
  std::uint64_t seed_ = 0;
};

TEST_P(DeviceConformance, Sizes) {
  const std::size_t most = std::size_t{5} << 20;
  PlacedMemory local(left().transport(), left_device(), most);
  PlacedMemory remote(right().transport(), right_device(), most);
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{4097}, std::size_t{65536},
                                 (std::size_t{1} << 20) + 13, most}) {
    for (const Operation operation : kBoth) {
      SCOPED_TRACE(size);
      move_and_check(operation, local, remote, most, {{most - size, 0, size}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DeviceConformance, ScatteredBlocksAtAnyAlignment) {
  for (const std::size_t size : {333, 4096, 16384}) {
    constexpr std::size_t kCount = 1500;
    std::vector<std::size_t> order(kCount);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, std::mt19937(static_cast<unsigned>(size)));
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < kCount; ++i) pieces.push_back({i * (size + 3), order[i] * (size + 5), size});
    const std::size_t all = kCount * (size + 5);
    PlacedMemory local(left().transport(), left_device(), all);
    PlacedMemory remote(right().transport(), right_device(), all);
    for (const Operation operation : kBoth) {
      SCOPED_TRACE(size);
      move_and_check(operation, local, remote, all, pieces);
      if (HasFatalFailure()) return;
    }
  }
}

// As a cache does it that asks for one block after the other: short transfers in quick succession.
TEST_P(DeviceConformance, ManyShortTransfers) {
  constexpr std::size_t kSize = 4096;
  constexpr std::size_t kCount = 400;
  PlacedMemory local(left().transport(), left_device(), kSize * kCount);
  PlacedMemory remote(right().transport(), right_device(), kSize * kCount);
  Bytes sent(kSize * kCount);
  fill_pattern(sent, 5);
  local.put(sent);
  const auto key = left().import(remote.offer());
  for (std::size_t i = 0; i < kCount; ++i) {
    const Status status = left().transfer(
        Operation::kWrite,
        {{local.data() + i * kSize, remote.address() + i * kSize, kSize, local.registration(), key.get()}});
    ASSERT_TRUE(status) << status.error().message;
  }
  EXPECT_TRUE(remote.get() == sent);
}

TEST_P(DeviceConformance, BothDirectionsAtOnce) {
  if (!right().transport().carries(place_of(right_device()), place_of(left_device()))) {
    GTEST_SKIP() << "it does not carry the other way";
  }
  const std::size_t size = std::size_t{3} << 20;
  PlacedMemory a(left().transport(), left_device(), 2 * size);
  PlacedMemory b(right().transport(), right_device(), 2 * size);
  Bytes in_a(2 * size);
  Bytes in_b(2 * size);
  fill_pattern(std::span(in_a).first(size), 71);
  fill_pattern(std::span(in_b).last(size), 72);
  a.put(in_a);
  b.put(in_b);
  const auto to_b = left().import(b.offer());
  const auto to_a = right().import(a.offer());
  const auto rightward =
      left().submit(Operation::kWrite, {{a.data(), b.address(), size, a.registration(), to_b.get()}});
  const auto leftward = right().submit(
      Operation::kWrite, {{b.data() + size, a.address() + size, size, b.registration(), to_a.get()}});
  ASSERT_TRUE(left().wait(*rightward));
  ASSERT_TRUE(right().wait(*leftward));
  ASSERT_TRUE(rightward->status() && leftward->status());
  const Bytes now_in_a = a.get();
  const Bytes now_in_b = b.get();
  EXPECT_EQ(first_mismatch(std::span(now_in_b).first(size), 71), std::nullopt);
  EXPECT_EQ(first_mismatch(std::span(now_in_a).last(size), 72), std::nullopt);
}

TEST_P(DeviceConformance, OutOfRangeIsRefused) {
  PlacedMemory local(left().transport(), left_device(), 8192);
  PlacedMemory remote(right().transport(), right_device(), 4096);
  const auto key = left().import(remote.offer());
  for (const Operation operation : kBoth) {
    const Status status = left().transfer(
        operation, {{local.data(), remote.address() + 1, 4096, local.registration(), key.get()}});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kOutOfRange) << status.error().message;
    EXPECT_TRUE(local.get() == Bytes(8192));
    EXPECT_TRUE(remote.get() == Bytes(4096));
  }
}

std::string place_name(int device) { return device < 0 ? "host" : "cuda" + std::to_string(device); }

INSTANTIATE_TEST_SUITE_P(All, DeviceConformance,
                         ::testing::Combine(::testing::ValuesIn(builtin_transports().entries),
                                            ::testing::Values(Places{0, 0}, Places{0, 1}, Places{-1, 0},
                                                              Places{1, -1})),
                         [](const auto& parameter) {
                           const Places places = std::get<Places>(parameter.param);
                           return std::get<0>(parameter.param).name + "_" + place_name(places.left) + "_" +
                                  place_name(places.right);
                         });

}  // namespace
}  // namespace p2p::conformance
