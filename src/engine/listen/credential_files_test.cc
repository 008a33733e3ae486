// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/credential_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/certificates.h"

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

class CredentialFilesTest : public ::testing::Test {
 protected:
  /// A new file each time, as editors and config maps make them.
  void write(const std::string& text) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = ::testing::TempDir() + "/p2p_credential_files_test." + std::to_string(::getpid());
};

TEST_F(CredentialFilesTest, AKeyFileIsReadAgainWhenItChanges) {
  write("a:0123456789abcdef\n");
  Options options;
  options.key_file = path_;
  auto files = CredentialFiles::open(options);
  ASSERT_TRUE(files) << files.error().message;
  const auto first = (*files)->current();
  EXPECT_EQ((*files)->current(), first);
  write("a:0123456789abcdef\nb:0123456789abcdef\n");
  const auto second = (*files)->current();
  EXPECT_EQ(second->keys().size(), 2U);
  // Half written: the keys of before stay.
  write("a:0123");
  EXPECT_EQ((*files)->current(), second);
  std::filesystem::remove(path_);
  EXPECT_EQ((*files)->current(), second);
  write("c:0123456789abcdef\n");
  EXPECT_EQ((*files)->current()->keys().size(), 1U);
}

TEST_F(CredentialFilesTest, CertificatesAreReadAgain) {
  const crypto::Authority authority("A");
  const auto files = authority.issue("one");
  Options options;
  options.tls_ca = files.authority;
  options.tls_certificate = files.certificate;
  options.tls_key = files.key;
  auto opened = CredentialFiles::open(options);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto first = (*opened)->current();
  const auto next = authority.issue("one");
  std::filesystem::rename(next.certificate, files.certificate);
  EXPECT_EQ((*opened)->current(), first) << "the key does not fit yet";
  std::filesystem::rename(next.key, files.key);
  EXPECT_NE((*opened)->current(), first);
}

TEST_F(CredentialFilesTest, SaysWhatDoesNotGoTogether) {
  const auto error = [](const Options& options) { return CredentialFiles::open(options).error().message; };
  Options options;
  options.allow = {"a"};
  EXPECT_THAT(error(options), HasSubstr("UCCL_P2P_ALLOW"));
  options.tls_ca = path_;
  EXPECT_THAT(error(options), HasSubstr("go together"));
  options.key_file = path_;
  EXPECT_THAT(error(options), HasSubstr("not both"));
  const crypto::Authority authority("A");
  const auto files = authority.issue("one");
  ASSERT_EQ(::chmod(files.key.c_str(), 0644), 0);
  options = {};
  options.tls_ca = files.authority;
  options.tls_certificate = files.certificate;
  options.tls_key = files.key;
  EXPECT_THAT(error(options), HasSubstr("everybody may read"));
  EXPECT_EQ(CredentialFiles::open(Options()).value(), nullptr);
}

}  // namespace
}  // namespace p2p::engine
