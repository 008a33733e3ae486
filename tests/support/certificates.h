// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "drivers/crypto/credentials.h"

/// Certificates for tests, made on the spot.
namespace p2p::crypto {

/// Signs certificates and writes them into a folder of its own, which goes with it.
class Authority {
 public:
  using Hours = std::chrono::hours;

  explicit Authority(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("p2p-authority-" + std::to_string(::getpid()) + "-" + std::to_string(counter_++))),
        key_(EVP_EC_gen("P-256"), EVP_PKEY_free),
        name_(name) {
    std::filesystem::create_directory(folder_);
    write(path(), certify(name, key_.get(), Hours(24), "CA:TRUE").get());
  }
  ~Authority() { std::filesystem::remove_all(folder_); }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  std::string path() const { return folder_ / "authority.pem"; }

  /// Files for a side that believes this authority; `valid` below 0: it ended so long ago.
  CertificateFiles issue(const std::string& name, Hours valid = Hours(24)) const {
    const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::string stem = folder_ / std::to_string(counter_++);
    CertificateFiles files{path(), stem + ".pem", stem + ".key"};
    write(files.certificate, certify(name, key.get(), valid).get());
    write(files.key, key.get());
    return files;
  }

 private:
  using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
  using Certificate = std::unique_ptr<X509, void (*)(X509*)>;
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  static void set_name(X509_NAME* to, const std::string& name) {
    const auto* text = reinterpret_cast<const unsigned char*>(name.data());
    EXPECT_EQ(X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_UTF8, text, static_cast<int>(name.size()), -1, 0),
              1);
  }

  Certificate certify(const std::string& name, EVP_PKEY* key, Hours valid,
                      const char* constraints = "CA:FALSE") const {
    Certificate made(X509_new(), X509_free);
    X509_set_version(made.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++counter_);
    const std::chrono::seconds end = valid;
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -2 * 24 * 3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), end.count());
    if (!name.empty()) set_name(X509_get_subject_name(made.get()), name);
    set_name(X509_get_issuer_name(made.get()), name_);
    X509_set_pubkey(made.get(), key);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, constraints);
    EXPECT_EQ(X509_add_ext(made.get(), extension, -1), 1);
    X509_EXTENSION_free(extension);
    EXPECT_GT(X509_sign(made.get(), key_.get(), EVP_sha256()), 0);
    return made;
  }

  static File create(const std::string& path) {
    File file(std::fopen(path.c_str(), "w"), std::fclose);
    EXPECT_NE(file, nullptr);
    std::filesystem::permissions(path,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return file;
  }
  static void write(const std::string& path, X509* certificate) {
    EXPECT_EQ(PEM_write_X509(create(path).get(), certificate), 1);
  }
  static void write(const std::string& path, EVP_PKEY* key) {
    EXPECT_EQ(PEM_write_PrivateKey(create(path).get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  }

  static inline std::atomic<int> counter_{0};
  const std::filesystem::path folder_;
  const Key key_;
  const std::string name_;
};

}  // namespace p2p::crypto
