// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a core seals and opens of the TLS of a data stream, without a socket: 64 MiB that are not in the
// cache, in calls of 1 MiB, each a frame's head and body. And what the cipher alone does, in the cache: with
// that no encryption of streams can be faster.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "drivers/crypto/stream_tls.h"

namespace p2p::crypto {
namespace {

constexpr std::size_t kAll = std::size_t{64} << 20;
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kHead = 72;

/// Keeps what one side sends until the other one takes it.
class Buffer final : public StreamTls::Pipe {
 public:
  explicit Buffer(Buffer* other) : other_(other) {}
  void join(Buffer& other) { other_ = &other; }

  Result<std::size_t> send(ByteView bytes) override {
    other_->bytes_.insert(other_->bytes_.end(), bytes.begin(), bytes.end());
    return bytes.size();
  }
  Result<std::size_t> receive(std::span<std::byte> into) override { return take(into); }

  void clear() {
    bytes_.clear();
    at_ = 0;
  }

 private:
  std::size_t take(std::span<std::byte> into) {
    const std::size_t got = std::min(into.size(), bytes_.size() - at_);
    if (got != 0) std::memcpy(into.data(), bytes_.data() + at_, got);
    at_ += got;
    return got;
  }

  Buffer* other_;
  Bytes bytes_;
  std::size_t at_ = 0;
};

struct Pair {
  Buffer left{nullptr};
  Buffer right{&left};
  std::unique_ptr<StreamTls> client;
  std::unique_ptr<StreamTls> server;
  Bytes from = Bytes(kAll, std::byte{1});
  Bytes into = Bytes(kAll);
  Bytes head = Bytes(kHead);

  Pair() {
    left.join(right);
    client = StreamTls::start(Tls::Side::kDials, {}, left).value();
    server = StreamTls::start(Tls::Side::kAccepts, {}, right).value();
    for (int i = 0; i != 3; ++i) {
      if (!client->shake_hands() || !server->shake_hands()) std::abort();
    }
  }

  void seal(std::size_t at) {
    const std::array<iovec, 2> pieces{iovec{head.data(), kHead}, iovec{from.data() + at, kPiece}};
    if (client->send(pieces).value().bytes != kHead + kPiece) std::abort();
  }
  void open(std::size_t at) {
    const std::array<iovec, 2> pieces{iovec{head.data(), kHead}, iovec{into.data() + at, kPiece}};
    if (server->receive(pieces).value().bytes != kHead + kPiece) std::abort();
  }
};

/// Times one half of what a stream does.
void run(benchmark::State& state, bool seals) {
  Pair pair;
  std::size_t at = 0;
  for ([[maybe_unused]] const auto _ : state) {
    if (!seals) state.PauseTiming();
    pair.seal(at);
    seals ? state.PauseTiming() : state.ResumeTiming();
    pair.open(at);
    if (!seals) state.PauseTiming();
    pair.right.clear();
    state.ResumeTiming();
    at = (at + kPiece) % kAll;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kPiece));
}

void seal(benchmark::State& state) { run(state, true); }
void open(benchmark::State& state) { run(state, false); }

void cipher(benchmark::State& state) {
  const auto seals = RecordCipher::start(RecordCipher::Use::kSeals, {}).value();
  const Bytes clear(RecordCipher::kMostClear, std::byte{1});
  Bytes record(clear.size() + RecordCipher::kAdded);
  for ([[maybe_unused]] const auto _ : state) {
    if (!seals->seal(RecordCipher::Type::kData, clear, record.data())) std::abort();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * clear.size()));
}
BENCHMARK(cipher);
BENCHMARK(seal);
BENCHMARK(open);

}  // namespace
}  // namespace p2p::crypto

BENCHMARK_MAIN();
