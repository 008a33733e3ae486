// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Chunks that pass from their owner to an importer, with files in place of device memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/error.h"
#include "drivers/socket/local_socket.h"
#include "transport/cuda_ipc/memory/chunk_fetch.h"
#include "transport/cuda_ipc/memory/chunk_protocol.h"
#include "transport/cuda_ipc/memory/chunk_server.h"

namespace p2p::cuda_ipc {
namespace {

using namespace std::chrono_literals;

// A file as long as the chunk: the importer can tell that it has the right one.
Result<UniqueFd> export_file(const cuda::Chunk& chunk) {
  UniqueFd file = UniqueFd::of(::memfd_create, "chunk", MFD_CLOEXEC);
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(chunk.size)) != 0) {
    return fail(ErrorCode::kSystem, "no file");
  }
  return file;
}

std::uint64_t length_of(const UniqueFd& file) {
  struct stat status{};
  return ::fstat(file.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::vector<cuda::Chunk> some_chunks(std::size_t count) {
  std::vector<cuda::Chunk> chunks(count);
  for (std::size_t i = 0; i < count; ++i) chunks[i].size = 4096 + i;
  return chunks;
}

Result<std::shared_ptr<const void>> always() { return std::shared_ptr<const void>(); }

ChunkedMemory memory_of(const Ticket& ticket, const std::vector<cuda::Chunk>& chunks) {
  ChunkedMemory memory{.owner = {},
                       .ticket = ticket,
                       .base = 4096,
                       .size = 0,
                       .count = static_cast<std::uint32_t>(chunks.size())};
  for (const cuda::Chunk& chunk : chunks) memory.size += chunk.size;
  return memory;
}

Status fetch(const ChunkedMemory& memory, std::vector<std::uint64_t>* sizes = nullptr,
             const socket::Place& place = {}) {
  return fetch_chunks(
      memory,
      [&](const UniqueFd& chunk, std::uint64_t size) -> Status {
        EXPECT_EQ(length_of(chunk), size);
        if (sizes != nullptr) sizes->push_back(size);
        return {};
      },
      place);
}

TEST(CudaIpcChunks, ComeThroughAFolder) {
  std::string folder = ::testing::TempDir() + "chunks.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const socket::Place place = socket::Place::at(folder).value();
  {
    ChunkServer server(export_file, nullptr, place);
    const auto chunks = some_chunks(40);
    ChunkedMemory memory = memory_of(server.offer(chunks, always).value(), chunks);
    const Status fetched = fetch(memory, nullptr, place);
    EXPECT_TRUE(fetched) << fetched.error().message;
    EXPECT_EQ(fetch(memory).error().code, ErrorCode::kPeerGone) << "it is in the folder alone";
    memory.ticket.secret[0] ^= std::byte{1};
    EXPECT_FALSE(fetch(memory, nullptr, place)) << "who does not know the secret gets none";
  }
  EXPECT_EQ(::rmdir(folder.c_str()), 0) << "nothing is left";
}

TEST(CudaIpcChunks, ArriveInOrderHoweverManyThereAre) {
  ChunkServer server(export_file);
  for (const std::size_t count : {1UL, kChunksOfABatch, kChunksOfABatch + 1, 3000UL}) {
    const auto chunks = some_chunks(count);
    const auto offer = server.offer(chunks, always);
    ASSERT_TRUE(offer);
    std::vector<std::uint64_t> sizes;
    const Status fetched = fetch(memory_of(*offer, chunks), &sizes);
    ASSERT_TRUE(fetched) << fetched.error().message;
    ASSERT_EQ(sizes.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(sizes[i], chunks[i].size);
  }
}

TEST(CudaIpcChunks, AreGivenToNobodyWithoutTheSecret) {
  std::atomic<int> exported{0};
  ChunkServer server([&](const cuda::Chunk& chunk) {
    ++exported;
    return export_file(chunk);
  });
  const auto chunks = some_chunks(3);
  ChunkedMemory memory = memory_of(server.offer(chunks, always).value(), chunks);
  memory.ticket.secret[4] ^= std::byte{1};
  const Status fetched = fetch(memory);
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(exported, 0);
}

TEST(CudaIpcChunks, WithoutMemoryForOneCallerTheOthersAreServed) {
  std::atomic<bool> full{true};
  ChunkServer server([&](const cuda::Chunk& chunk) {
    if (full.exchange(false)) throw std::bad_alloc();
    return export_file(chunk);
  });
  const auto chunks = some_chunks(3);
  const ChunkedMemory memory = memory_of(server.offer(chunks, always).value(), chunks);
  EXPECT_FALSE(fetch(memory));
  const Status again = fetch(memory);
  EXPECT_TRUE(again) << again.error().message;
}

// Who took the owner's name does not learn the secret, and is not believed.
TEST(CudaIpcChunks, AreTakenFromNobodyWithoutTheSecret) {
  const auto chunks = some_chunks(1);
  Ticket ticket;
  ticket.server.fill(std::byte{static_cast<unsigned char>(::getpid())});
  const socket::Listener listener = socket::listen_locally(name_of(ticket.server)).value();
  Background impostor("impostor");
  impostor.post([&] {
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    UniqueFd caller;
    while (!caller && std::chrono::steady_clock::now() < deadline) caller = socket::accept_local(listener);
    EXPECT_TRUE(socket::send_packet(caller, Bytes(16), {}, deadline));
    EXPECT_TRUE(socket::receive_packet(caller, kMaxPacket, 0, deadline));
    EXPECT_TRUE(socket::send_packet(caller, Bytes(33), {}, deadline));
    static_cast<void>(socket::receive_packet(caller, kMaxPacket, 0, deadline));
  });
  const Status fetched = fetch(memory_of(ticket, chunks));
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code, ErrorCode::kPermissionDenied);
}

TEST(CudaIpcChunks, OfMemoryThatItsOwnerTookBack) {
  ChunkServer server(export_file);
  const auto chunks = some_chunks(100);
  int asked = 0;
  const auto once = [&]() -> Result<std::shared_ptr<const void>> {
    if (++asked == 1) return std::shared_ptr<const void>();
    return fail(ErrorCode::kNotFound, "it was taken back");
  };
  const auto offer = server.offer(chunks, once);
  Status fetched = fetch(memory_of(*offer, chunks));
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.error().message.find("it was taken back"), std::string::npos) << fetched.error().message;
  server.withdraw(*offer);
  fetched = fetch(memory_of(*offer, chunks));
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code, ErrorCode::kNotFound);
}

TEST(CudaIpcChunks, ThatCannotBeExportedAreRefusedWithTheReason) {
  ChunkServer server([](const cuda::Chunk& chunk) -> Result<UniqueFd> {
    if (chunk.size < 4096 + 50) return export_file(chunk);
    return fail(ErrorCode::kNotFound, "other memory is mapped there now");
  });
  const auto chunks = some_chunks(60);
  const Status fetched = fetch(memory_of(server.offer(chunks, always).value(), chunks));
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.error().message.find("other memory is mapped"), std::string::npos);
}

TEST(CudaIpcChunks, ThatDoNotAddUpAreRefused) {
  ChunkServer server(export_file);
  const auto chunks = some_chunks(40);
  const ChunkedMemory good = memory_of(server.offer(chunks, always).value(), chunks);
  for (const int wrong : {-1, 1}) {
    ChunkedMemory memory = good;
    memory.size += static_cast<std::uint64_t>(wrong);
    EXPECT_EQ(fetch(memory).error().code, ErrorCode::kProtocol);
    memory = good;
    memory.count += static_cast<std::uint32_t>(wrong);
    EXPECT_FALSE(fetch(memory));
  }
}

/// A server that lends a file and counts who has one.
class Lender {
 public:
  Ticket ticket(int device = 0) { return server.offer_lease(device).value(); }

  bool comes_to(long count) const {
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    while (lent.use_count() != count + 1 && std::chrono::steady_clock::now() < deadline) continue;
    return lent.use_count() == count + 1;
  }

  std::shared_ptr<int> lent = std::make_shared<int>();
  ChunkServer server{export_file, [this](int device) -> Result<ChunkServer::Lease> {
                       if (device != 0) return fail(ErrorCode::kUnavailable, "no memory is left");
                       ChunkServer::Lease lease{.words = {std::byte{5}}, .kept = lent};
                       lease.descriptors.push_back(export_file({.size = 4096}).value());
                       return lease;
                     }};
};

TEST(CudaIpcLeases, AreKeptForAsLongAsTheBorrowerIsThere) {
  Lender lender;
  EXPECT_EQ(lender.ticket(), lender.ticket());
  auto borrowed = borrow(lender.ticket(), 1);
  ASSERT_TRUE(borrowed) << borrowed.error().message;
  EXPECT_EQ(borrowed->words, Bytes{std::byte{5}});
  EXPECT_EQ(length_of(borrowed->descriptors[0]), 4096U);
  EXPECT_TRUE(lender.comes_to(1));
  const auto second = borrow(lender.ticket(), 1);
  ASSERT_TRUE(second);
  EXPECT_TRUE(lender.comes_to(2));
  borrowed->owner.reset();
  EXPECT_TRUE(lender.comes_to(1));
}

TEST(CudaIpcLeases, StayWhereStrangersCome) {
  Lender lender;
  const auto borrowed = borrow(lender.ticket(), 1);
  ASSERT_TRUE(borrowed);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(socket::connect_locally(name_of(lender.ticket().server)).value());
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    ASSERT_TRUE(socket::receive_packet(strangers.back(), kMaxPacket, 0, deadline));
  }
  EXPECT_TRUE(lender.comes_to(1));
  EXPECT_TRUE(borrow(lender.ticket(), 1));
}

TEST(CudaIpcLeases, AreRefusedWithTheReasonAndToStrangers) {
  Lender lender;
  const auto refused = borrow(lender.ticket(1), 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("no memory is left"), std::string::npos);
  Ticket wrong = lender.ticket();
  wrong.secret[3] ^= std::byte{1};
  EXPECT_FALSE(borrow(wrong, 1));
  EXPECT_EQ(borrow(lender.ticket(), 2).error().code, ErrorCode::kProtocol) << "one descriptor, not two";
  ChunkServer none(export_file);
  EXPECT_FALSE(none.offer_lease(0));
}

TEST(CudaIpcChunks, StrangersAreNotInTheWay) {
  ChunkServer server(export_file);
  const auto chunks = some_chunks(70);
  const ChunkedMemory memory = memory_of(server.offer(chunks, always).value(), chunks);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(socket::connect_locally(name_of(memory.ticket.server)).value());
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    ASSERT_TRUE(socket::receive_packet(strangers.back(), kMaxPacket, 0, deadline));
    if (i % 2 == 0) static_cast<void>(socket::send_packet(strangers.back(), Bytes(i + 1), {}, deadline));
  }
  EXPECT_TRUE(fetch(memory));
}

}  // namespace
}  // namespace p2p::cuda_ipc
