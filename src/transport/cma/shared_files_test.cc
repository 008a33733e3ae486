// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Files that channels of two PID namespaces give each other: a channel, and a peer that speaks to it by hand.
// scripts/test_netns.sh and python/tests/test_namespaces.py have real ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "transport/cma/apart_testing.h"

namespace p2p::cma::shared_files_test {
namespace {

using ::p2p::SharedMemory;
using ::testing::HasSubstr;

class CmaSharedFiles : public Apart {
 protected:
  /// The peer's region of `shared_`, from its byte 100 on, as it is imported here.
  std::unique_ptr<RemoteKey> import(std::uint64_t offset = 100) {
    RegionInfo info = info_of(9, reinterpret_cast<std::byte*>(0x10000), kBytes);
    Bytes exported;
    ByteWriter(exported).put(offset);
    auto key = PeerRegion::import(info, exported);
    EXPECT_TRUE(key);
    return key ? *std::move(key) : nullptr;
  }

  std::vector<Segment> segments(const RemoteKey& key) {
    return {{memory_.data(), 0x10000, kBytes, &local_, &key}};
  }

  /// A write goes by slots, and has the channel ask for the file behind the region.
  WantFile first_write(const std::vector<Segment>& list) {
    EXPECT_TRUE(channel_->post({BatchId{1}, Operation::kWrite, list, 0, kBytes}));
    turns();
    Bytes message;
    const auto heard = reader_.read(message);
    EXPECT_TRUE(heard && *heard);
    const auto want = decode_file_message(message);
    EXPECT_TRUE(want && *want && std::holds_alternative<WantFile>(**want));
    const CopyRequest request = hear<CopyRequest>();
    say(encode(CopyOutcome{request.batch, {}}));
    EXPECT_EQ(done_.size(), 1U);
    done_.clear();
    return want && *want ? std::get<WantFile>(**want) : WantFile{};
  }

  void give(const UniqueFd& file) {
    const std::array wake{std::byte{0}};
    ASSERT_TRUE(socket::send_packet(socket_, wake, {}, {}));
    ASSERT_TRUE(socket::send_packet(socket_, wake, std::span(&file, 1), {}));
    say(encode(FileAnswer{true}));
  }

  static std::string how(const RemoteKey& key) {
    return dynamic_cast<const PeerRegion&>(key).mapping()->describe();
  }

  std::shared_ptr<const SharedMemory> shared_ = SharedMemory::create(kBytes + 100).value();
};

TEST_F(CmaSharedFiles, OnceThePeerHasGivenTheFileBytesGoThereAtOnce) {
  connect();
  const auto key = import();
  const auto list = segments(*key);
  const WantFile want = first_write(list);
  EXPECT_EQ(want.region, key->info().id);
  EXPECT_EQ(want.key, key->info().key);
  EXPECT_EQ(want.size, kBytes);
  give(shared_->file());
  EXPECT_EQ(how(*key), "the peer's region is mapped here");
  ASSERT_TRUE(channel_->post({BatchId{2}, Operation::kWrite, list, 0, kBytes}));
  turns();
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_TRUE(done_.front().status);
  EXPECT_EQ(std::memcmp(shared_->data() + 100, before_.data(), kBytes), 0);
  done_.clear();
  const Bytes other = pattern(kBytes, 8);
  std::memcpy(shared_->data() + 100, other.data(), kBytes);
  ASSERT_TRUE(channel_->post({BatchId{3}, Operation::kRead, list, 0, kBytes}));
  turns();
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_EQ(memory_, other);
}

TEST_F(CmaSharedFiles, WhatIsNotAsItMustBeIsNotMapped) {
  UniqueFd loose = UniqueFd::of(::memfd_create, "p2p-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(loose.get(), 2 * kBytes), 0);
  const struct {
    const UniqueFd& file;
    std::uint64_t offset;
    const char* why;
  } bad[] = {{loose, 100, "a size that stays"},
             {shared_->file(), 101, "is to have"},
             {shared_->file(), ~std::uint64_t{0} - 10, "is to have"}};
  for (const auto& each : bad) {
    connect();
    const auto key = import(each.offset);
    const auto list = segments(*key);
    first_write(list);
    give(each.file);
    EXPECT_THAT(how(*key), HasSubstr(each.why));
    EXPECT_TRUE(channel_->post({BatchId{2}, Operation::kWrite, list, 0, kBytes}));
    turns();
    EXPECT_EQ(hear<CopyRequest>().batch, 2U) << "by slots, and nothing is asked for again";
    done_.clear();
  }
}

TEST_F(CmaSharedFiles, BadMemoryHereIsAnError) {
  connect();
  const auto key = import();
  auto list = segments(*key);
  first_write(list);
  give(shared_->file());
  void* const gone = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  list[0].local = static_cast<std::byte*>(gone);
  ASSERT_TRUE(channel_->post({BatchId{2}, Operation::kWrite, list, 0, kBytes}));
  turns();
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_THAT(done_.front().status.error().message, HasSubstr("read 100000 bytes"));
  EXPECT_EQ(channel_->state(), ChannelState::kReady);
  ::munmap(gone, kBytes);
}

TEST_F(CmaSharedFiles, ARegionThatHasEndedIsLetGoOf) {
  connect();
  const auto key = import();
  first_write(segments(*key));
  give(shared_->file());
  key->retire();
  EXPECT_EQ(how(*key), "");
  const auto late = import();
  first_write(segments(*late));
  late->retire();
  give(shared_->file());
  EXPECT_EQ(how(*late), "") << "it was over before the answer came";
}

TEST_F(CmaSharedFiles, ThePeerGetsTheFileOfWhatItMayUse) {
  RegionInfo info = info_of(2, shared_->data() + 100, kBytes);
  info.shared = shared_;
  regions_->add(std::make_shared<Registration>(info));
  connect();
  const auto ask = [&](const RegionInfo& region, RegionKey key) {
    say(encode(WantFile{region.id, key, reinterpret_cast<std::uint64_t>(region.base), region.size}));
    Bytes message;
    EXPECT_TRUE(reader_.read(message).value());
    const auto answer = decode_file_message(message);
    return std::get<FileAnswer>(**answer).given;
  };
  EXPECT_FALSE(ask(info, RegionKey{})) << "with a wrong key";
  EXPECT_FALSE(ask(info_, info_.key)) << "of memory that has no file";
  RegionInfo larger = info;
  larger.size += 1;
  EXPECT_FALSE(ask(larger, info.key));
  ASSERT_TRUE(ask(info, info.key));
  UniqueFd file;
  std::array<std::byte, 8> packet;
  for (int i = 0; i != 64 && !file; ++i) receive_with_descriptor(socket_, packet, file);
  EXPECT_EQ(size_of_sealed_file(file).value(), shared_->size());
  EXPECT_EQ(export_shared(info).size(), 8U);
  EXPECT_TRUE(export_shared(info_).empty());
}

TEST_F(CmaSharedFiles, NonsenseEndsTheChannel) {
  const Bytes want = encode(WantFile{});
  for (const auto& [message, why] : {std::pair{encode(FileAnswer{true}), "was not asked for"},
                                     std::pair{Bytes(want.begin(), want.end() - 1), "cannot be read"},
                                     std::pair{Bytes{std::byte{4}, std::byte{2}}, "cannot be read"}}) {
    connect();
    say(message);
    EXPECT_EQ(channel_->state(), ChannelState::kFailed);
    EXPECT_THAT(channel_->error().message, HasSubstr(why));
  }
  EXPECT_FALSE(PeerRegion::import(info_, Bytes(7)));
  EXPECT_FALSE(PeerRegion::import(info_, Bytes(9)));
}

}  // namespace
}  // namespace p2p::cma::shared_files_test
