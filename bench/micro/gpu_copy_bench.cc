// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Copies on one GPU and between two, without the engine: kernels over block lists, copy engines, and the time
// of a single short copy from its start to the caller's notice of its end. Every row's bytes are compared. An
// argument names a file for one JSON object a row.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/copier.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p {
namespace {

using Clock = std::chrono::steady_clock;
using device::Copier;

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr std::size_t kMostBlocks = kBytes / 4096;
constexpr int kRounds = 8;
constexpr int kShortRounds = 2000;
constexpr int kPausedRounds = 12;
constexpr std::chrono::seconds kPatience{10};

/// Either end of a row.
struct Place {
  std::string name;
  int device = -1;  // -1: pinned host memory
  std::byte* data = nullptr;
};

/// Memory of both devices (the same one where there is one only) and of the host.
class Memory {
 public:
  static Result<Memory> allocate() {
    Memory memory;
    const int far = cuda::device_count() > 1 && cuda::reaches(0, 1) && cuda::reaches(1, 0) ? 1 : 0;
    if (const Status reached = cuda::enable_peer(0, far); !reached) return tl::unexpected(reached.error());
    auto near_buffer = cuda::DeviceBuffer::allocate(0, kBytes);
    if (!near_buffer) return tl::unexpected(near_buffer.error());
    auto far_buffer = cuda::DeviceBuffer::allocate(far, kBytes);
    if (!far_buffer) return tl::unexpected(far_buffer.error());
    auto host = cuda::HostBuffer::allocate(kBytes);
    if (!host) return tl::unexpected(host.error());
    memory.near_ = std::move(*near_buffer);
    memory.far_ = std::move(*far_buffer);
    memory.host_ = std::move(*host);
    memory.content_.resize(kBytes);
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < kBytes; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(memory.content_.data() + i, &word, sizeof word);
    }
    return memory;
  }

  Place near() const { return {"GPU", 0, near_.data()}; }
  Place far() const { return {far_.device() == 0 ? "same GPU" : "other GPU", far_.device(), far_.data()}; }
  Place host() const { return {"host", -1, host_.data()}; }

  Status arm(const Place& source, const Place& target) const {
    const std::vector<std::byte> nothing(kBytes);
    if (const Status cleared = cuda::copy_now(target.data, nothing.data(), kBytes); !cleared) return cleared;
    return cuda::copy_now(source.data, content_.data(), kBytes);
  }

  /// The blocks' bytes have come.
  Status check(const Place& source, const Place& target,
               const std::vector<kernels::CopyBlock>& blocks) const {
    std::vector<std::byte> got(kBytes);
    if (const Status copied = cuda::copy_now(got.data(), target.data, kBytes); !copied) return copied;
    for (const kernels::CopyBlock& block : blocks) {
      const auto from = block.source - source.data;
      const auto to = block.target - target.data;
      if (std::memcmp(content_.data() + from, got.data() + to, block.bytes) != 0) {
        return fail(ErrorCode::kProtocol, "wrong bytes at {}", to);
      }
    }
    return {};
  }

 private:
  cuda::DeviceBuffer near_;
  cuda::DeviceBuffer far_;
  cuda::HostBuffer host_;
  std::vector<std::byte> content_;
};

/// All of the memory in blocks of `size`, sources in shuffled order.
std::vector<kernels::CopyBlock> cut(const Place& source, const Place& target, std::size_t size) {
  std::vector<std::size_t> order(kBytes / size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  std::vector<kernels::CopyBlock> blocks;
  for (std::size_t i = 0; i < order.size(); ++i) {
    blocks.push_back({source.data + order[i] * size, target.data + i * size, size});
  }
  return blocks;
}

/// Starts the blocks as one list and waits for its end.
Result<Clock::duration> run(Copier& copier, const std::vector<kernels::CopyBlock>& blocks) {
  Copier::List* const list = copier.take();
  if (list == nullptr) return fail(ErrorCode::kUnavailable, "no list is free");
  for (const kernels::CopyBlock& block : blocks) copier.add(*list, block);
  const auto start = Clock::now();
  copier.start(*list);
  while (!copier.finished(*list)) {
    if (Clock::now() - start > kPatience) return fail(ErrorCode::kTimedOut, "a copy does not end");
  }
  const auto took = Clock::now() - start;
  const Status status = list->status();
  copier.give_back(*list);
  if (!status) return tl::unexpected(status.error());
  return took;
}

struct Row {
  std::string name;
  Place source;
  Place target;
  std::size_t block = kBytes;
  Copier::Limits limits;
  bool single = false;                 ///< one block, again and again
  std::chrono::milliseconds pause{0};  ///< before each
};

/// Microseconds of one list, median.
Result<double> measure(const Memory& memory, const Row& row) {
  auto copier = Copier::open(0, row.limits);
  if (!copier) return tl::unexpected(copier.error());
  if (const Status armed = memory.arm(row.source, row.target); !armed) return tl::unexpected(armed.error());
  std::vector<kernels::CopyBlock> blocks = cut(row.source, row.target, row.block);
  if (row.single) blocks.resize(1);
  std::vector<double> times;
  const bool pauses = row.pause.count() != 0;
  const int rounds = pauses ? kPausedRounds : row.single ? kShortRounds : kRounds;
  for (int round = 0; round < rounds; ++round) {
    std::this_thread::sleep_for(row.pause);
    const auto took = run(**copier, blocks);
    if (!took) return tl::unexpected(took.error());
    times.push_back(std::chrono::duration<double, std::micro>(*took).count());
  }
  if (const Status right = memory.check(row.source, row.target, blocks); !right) {
    return tl::unexpected(right.error());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

constexpr Copier::Limits kEngine{.bulk_bytes = 0, .bulk_count = 1, .blocks = kMostBlocks, .lists = 1};

Copier::Limits by_kernel(unsigned ctas) {
  return {.grid = {.ctas = ctas}, .bulk_bytes = ~std::uint64_t{0}, .blocks = kMostBlocks, .lists = 1};
}

Copier::Limits by_standby(unsigned ctas) {
  return {.bulk_bytes = ~std::uint64_t{0},
          .bulk_count = 1,
          .blocks = kMostBlocks,
          .lists = 1,
          .standby_ctas = ctas};
}

std::vector<Row> rows(const Memory& memory) {
  std::vector<Row> rows;
  const Place gpu = memory.near();
  const Place far = memory.far();
  const Place host = memory.host();
  rows.push_back({"copy engine", gpu, host, kBytes, kEngine});
  rows.push_back({"copy engine", host, gpu, kBytes, kEngine});
  rows.push_back({"copy engine", gpu, far, kBytes, kEngine});
  for (const std::size_t size : {std::size_t{4096}, std::size_t{16384}, std::size_t{65536}}) {
    rows.push_back({"gather kernel", gpu, host, size, by_kernel(8)});
    rows.push_back({"scatter kernel", host, gpu, size, by_kernel(8)});
    rows.push_back({"kernel over blocks", gpu, far, size, by_kernel(64)});
  }
  for (const std::size_t size : {std::size_t{4096}, std::size_t{65536}, std::size_t{262144},
                                 std::size_t{1} << 20, std::size_t{4} << 20}) {
    rows.push_back({"one, copy engine", gpu, far, size, kEngine, true});
    rows.push_back({"one, kernel", gpu, far, size, by_kernel(64), true});
    for (const unsigned ctas : {8U, 16U, 32U}) {
      rows.push_back({fmt::format("one, standby {}", ctas), gpu, far, size, by_standby(ctas), true});
    }
  }
  // Devices and links between them go to sleep.
  for (const std::size_t size : {std::size_t{65536}, std::size_t{16} << 20}) {
    for (const int pause : {1, 5, 20, 100}) {
      const std::string name = fmt::format("one, after {} ms", pause);
      rows.push_back({name, gpu, far, size, kEngine, true, std::chrono::milliseconds(pause)});
    }
  }
  return rows;
}

/// Closes the file.
struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

int run_all(const char* json_path) {
  if (const Status usable = cuda::available(); !usable) {
    fmt::print(stderr, "gpu_copy_bench: {}\n", usable.error().message);
    return 1;
  }
  const auto memory = Memory::allocate();
  if (!memory) {
    fmt::print(stderr, "gpu_copy_bench: {}\n", memory.error().message);
    return 1;
  }
  std::unique_ptr<std::FILE, Close> json;
  if (json_path != nullptr) {
    json.reset(std::fopen(json_path, "w"));
    if (!json) {
      fmt::print(stderr, "gpu_copy_bench: {}\n", system_error(fmt::format("write {}", json_path)).message);
      return 1;
    }
  }
  int failed = 0;
  fmt::print("{:20} {:>10} {:>10} {:>10} {:>10} {:>9}\n", "what", "from", "to", "block", "us", "GB/s");
  for (const Row& row : rows(*memory)) {
    const auto microseconds = measure(*memory, row);
    if (!microseconds) {
      fmt::print("{:20} {}\n", row.name, microseconds.error().message);
      failed = 1;
      continue;
    }
    const std::size_t bytes = row.single ? row.block : kBytes;
    fmt::print("{:20} {:>10} {:>10} {:>10} {:>10.2f} {:>9.2f}\n", row.name, row.source.name, row.target.name,
               row.block, *microseconds, static_cast<double>(bytes) / *microseconds / 1e3);
    std::fflush(stdout);
    if (!json) continue;
    fmt::print(json.get(),
               R"({{"what":"{}","from":"{}","to":"{}","block":{},"us":{:.2f},"gbytes_per_second":{:.2f},)"
               R"("verified":true}})"
               "\n",
               row.name, row.source.name, row.target.name, row.block, *microseconds,
               static_cast<double>(bytes) / *microseconds / 1e3);
  }
  return failed;
}

}  // namespace
}  // namespace p2p

int main(int argc, char** argv) { return p2p::run_all(argc > 1 ? argv[1] : nullptr); }
