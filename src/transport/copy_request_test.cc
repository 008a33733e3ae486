// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/copy_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/wire_code.h"
#include "transport/registration.h"

namespace p2p {
namespace {

using ::testing::HasSubstr;

RemoteKey key_of(std::uint32_t id) {
  RegionInfo info{.id = RegionId{id}, .key = {}, .base = nullptr, .size = 4096, .place = {}};
  info.key.fill(static_cast<std::byte>(id));
  return RemoteKey(info);
}

CopyRequest good_request() {
  const RemoteKey key = key_of(7);
  RequestList list(42, Operation::kRead);
  list.add(key, 64, RegionId{3}, 1000, 100);
  list.add(key, 300, RegionId{3}, 2000, 28);
  EXPECT_EQ(list.requests().size(), 1U);
  return list.requests().front();
}

ErrorCode code_of(const Bytes& message) {
  const auto decoded = decode_copy_message(message);
  return decoded ? ErrorCode::kInvalidArgument : decoded.error().code;
}

TEST(CopyRequestTest, ComesAsItWasSaid) {
  const Bytes bytes = encode(good_request());
  const auto decoded = decode_copy_message(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  const auto& same = std::get<CopyRequest>(*decoded);
  EXPECT_EQ(same.batch, 42U);
  EXPECT_EQ(same.operation, Operation::kRead);
  EXPECT_TRUE(same.last);
  EXPECT_EQ(same.mine, RegionId{3});
  ASSERT_EQ(same.regions.size(), 1U);
  EXPECT_EQ(same.regions[0].id, RegionId{7});
  EXPECT_EQ(same.regions[0].key, key_of(7).info().key);
  ASSERT_EQ(same.pieces.size(), 2U);
  EXPECT_EQ(same.pieces[1].theirs, 300U);
  EXPECT_EQ(same.pieces[1].mine, 2000U);
  EXPECT_EQ(same.pieces[1].size, 28U);
  for (std::size_t size = 0; size != bytes.size(); ++size) {
    EXPECT_EQ(code_of(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))),
              size == bytes.size() - sizeof(CopyRequest::Piece) ? ErrorCode::kInvalidArgument
                                                                : ErrorCode::kProtocol)
        << size;
  }
  EXPECT_EQ(encode(same), bytes);
}

TEST(CopyRequestTest, IsCutWhereItIsFullOrTheSendersRegionChanges) {
  const RemoteKey one = key_of(1);
  const RemoteKey other = key_of(2);
  RequestList list(5, Operation::kWrite);
  for (std::size_t i = 0; i != kMaxRequestPieces + 1; ++i)
    list.add(i % 2 == 0 ? one : other, i, RegionId{3}, i, 1);
  list.add(one, 0, RegionId{4}, 0, 1);
  const auto& requests = list.requests();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].pieces.size(), kMaxRequestPieces);
  EXPECT_EQ(requests[0].regions.size(), 2U) << "each is told of once";
  EXPECT_EQ(requests[0].pieces[3].region, 1U);
  EXPECT_EQ(requests[1].pieces.size(), 1U);
  EXPECT_EQ(requests[1].regions.size(), 1U);
  EXPECT_EQ(requests[2].mine, RegionId{4});
  EXPECT_FALSE(requests[0].last || requests[1].last);
  EXPECT_TRUE(requests[2].last);
  for (const CopyRequest& request : requests)
    EXPECT_EQ(code_of(encode(request)), ErrorCode::kInvalidArgument);
}

TEST(CopyRequestTest, AnOutcomeSaysWhyWithoutControlCharacters) {
  const CopyOutcome bad{3, tl::unexpected(Error{ErrorCode::kOutOfRange, "too \x1b[31m far"})};
  const auto decoded = decode_copy_message(encode(bad));
  ASSERT_TRUE(decoded);
  const auto& same = std::get<CopyOutcome>(*decoded);
  EXPECT_EQ(same.batch, 3U);
  EXPECT_EQ(same.status.error().code, ErrorCode::kOutOfRange);
  EXPECT_THAT(same.status.error().message, HasSubstr("too ?[31m far"));
  EXPECT_TRUE(std::get<CopyOutcome>(*decode_copy_message(encode(CopyOutcome{4, {}}))).status);
  Bytes unknown = encode(bad);
  unknown[9] = std::byte{0x77};
  EXPECT_EQ(code_of(unknown), ErrorCode::kProtocol);
}

// The channel that says it works.
TEST(CopyRequestTest, NoOutcomeSaysThatThePeerIsGone) {
  const CopyOutcome lost{5, tl::unexpected(Error{ErrorCode::kPeerGone, "lost"})};
  Bytes said = encode(lost);
  const auto decoded = decode_copy_message(said);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<CopyOutcome>(*decoded).status.error().code, ErrorCode::kUnavailable);
  const std::uint16_t gone = wire_code(ErrorCode::kPeerGone);
  std::memcpy(&said[9], &gone, sizeof gone);
  EXPECT_EQ(code_of(said), ErrorCode::kProtocol);
}

TEST(CopyRequestTest, IsNoneWithWhatNobodyAsks) {
  const auto with = [](auto change) {
    CopyRequest request = good_request();
    change(request);
    return code_of(encode(request));
  };
  EXPECT_EQ(with([](CopyRequest&) {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](CopyRequest& r) { r.pieces.clear(); }), ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.regions.clear(); }), ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.pieces[0].size = 0; }), ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.pieces[1].region = 1; }), ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.operation = static_cast<Operation>(2); }), ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.pieces[1].mine = std::numeric_limits<std::uint64_t>::max() - 10; }),
            ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.pieces.resize(kMaxRequestPieces + 1, r.pieces[0]); }),
            ErrorCode::kProtocol);
  EXPECT_EQ(with([](CopyRequest& r) { r.regions.resize(kMaxRequestPieces + 1); }), ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p
