// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/mutual_proof.h"

#include <gtest/gtest.h>

#include <string_view>

namespace p2p::crypto {
namespace {

const Bytes kSecret(32, std::byte{7});

MutualProof proof(std::string_view use, std::string_view one, std::string_view two,
                  ByteView secret = kSecret) {
  MutualProof made(use, secret);
  made.bind(as_bytes(one)).bind(as_bytes(two));
  return made;
}

TEST(MutualProofTest, HoldsForTheSideThatMadeIt) {
  const Digest made = proof("use", "mine", "theirs").by(Role::kConnector);
  EXPECT_TRUE(proof("use", "mine", "theirs").holds(Role::kConnector, made));
  EXPECT_FALSE(proof("use", "mine", "theirs").holds(Role::kAcceptor, made)) << "sent back";
  EXPECT_FALSE(proof("use", "mine", "theirs").holds(Role::kConnector, ByteView(made).first(31)));
  EXPECT_FALSE(proof("use", "mine", "theirs").holds(Role::kConnector, {}));
}

TEST(MutualProofTest, HoldsForNothingElse) {
  const Digest made = proof("use", "mine", "theirs").by(Role::kAcceptor);
  const Bytes other_secret(32, std::byte{8});
  for (const MutualProof& other :
       {proof("us", "mine", "theirs"), proof("use", "mine", "other"), proof("use", "theirs", "mine"),
        proof("use", "minet", "heirs"), proof("use", "minetheirs", ""), proof("usemine", "theirs", ""),
        proof("use", "mine", "theirs", other_secret), MutualProof("use", kSecret)}) {
    EXPECT_FALSE(other.holds(Role::kAcceptor, made));
  }
}

TEST(MutualProofTest, TheKeyIsNeitherSidesProof) {
  const MutualProof both = proof("use", "mine", "theirs");
  EXPECT_EQ(both.key(), proof("use", "mine", "theirs").key());
  EXPECT_FALSE(both.holds(Role::kConnector, both.key()));
  EXPECT_FALSE(both.holds(Role::kAcceptor, both.key()));
  EXPECT_NE(both.key(), proof("use", "mine", "other").key());
}

}  // namespace
}  // namespace p2p::crypto
