// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include "command.h"
#include "hex.h"

namespace p2p::testing {
namespace {

/// Ends the test with a sentence: without its endpoints it has nothing to go on with.
template <class T>
T must(Result<T> result, const char* what) {
  if (!result) throw std::runtime_error(fmt::format("{}: {}", what, result.error().message));
  return std::move(*result);
}

/// A key for this process and those that it starts.
class KeyFile {
 public:
  KeyFile() {
    std::ofstream(path_) << "one:a secret of more than sixteen bytes";
    std::filesystem::permissions(path_, std::filesystem::perms::owner_read);
  }
  ~KeyFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      (std::filesystem::temp_directory_path() / fmt::format("p2p_key_{}", ::getpid())).string();
};

}  // namespace

Options EndpointPlan::options() const {
  Options options;
  options.listen_address = address;
  options.port = port;
  if (!transport.empty()) options.transports = names_in(transport);
  options.keepalive = keepalive;
  options.hung = hung;
  options.idle = idle;
  options.key_file = key_file;
  options.tls = tls;
  options.workers = workers;
  options.streams = streams;
  options.nccl_net.plugin = plugin;
  return options;
}

EndpointPlan plan_over(const std::string& transport) {
  if (transport != "tcp_tls") return {.transport = transport};
  static const KeyFile key;
  return {.transport = "tcp", .key_file = key.path(), .tls = Encryption::kRequire};
}

Endpoint make_endpoint(const EndpointPlan& plan) {
  return must(Endpoint::create(plan.options()), "make an endpoint");
}

Process Peer::start(const std::vector<std::string>& prefix) {
  std::vector<std::string> words = prefix;
  words.emplace_back(P2P_PEER_PROGRAM);
  return must(Process::spawn(words), "start a peer process");
}

Peer::Peer(const EndpointPlan& plan, const std::vector<std::string>& prefix) : process_(start(prefix)) {
  const std::string command = fmt::format(
      "endpoint {} {} {} {} {} {} {} {} {} {} {} {} {}", plan.address.empty() ? "-" : plan.address, plan.port,
      plan.transport.empty() ? "-" : plan.transport, plan.keepalive.count(),
      plan.key_file.empty() ? "-" : plan.key_file, plan.workers, plan.streams,
      plan.interfaces.empty() ? "-" : plan.interfaces, plan.hung.count(), plan.idle.count(),
      static_cast<unsigned>(plan.tls), plan.plugin.empty() ? "-" : plan.plugin, plan.announce);
  std::istringstream words(must(call(command), "make a peer's endpoint"));
  words >> address_ >> port_;
}

void Peer::begin(const std::string& command) { EXPECT_TRUE(is_ok(process_.write_line(command))); }

Result<std::string> Peer::finish(std::chrono::milliseconds timeout) {
  const auto line = process_.read_line(timeout);
  if (!line) return line;
  return parse_answer(*line);
}

Result<std::string> Peer::call(const std::string& command) {
  begin(command);
  return finish();
}

std::uint64_t Peer::number(const std::string& command) {
  const auto answer = call(command);
  EXPECT_TRUE(answer) << command << ": " << answer.error().message;
  std::uint64_t value = 0;
  if (answer) std::from_chars(answer->data(), answer->data() + answer->size(), value);
  return value;
}

PeerRegion Peer::region(std::uint64_t size) {
  std::istringstream words(must(call(fmt::format("region {}", size)), "register a peer's memory"));
  PeerRegion region;
  std::string hex;
  words >> region.index >> hex;
  region.descriptor = must(from_hex(hex), "parse a peer's descriptor");
  return region;
}

std::uint64_t Peer::accept() {
  return number(fmt::format("accept {}", std::chrono::milliseconds(kLimit).count()));
}

Status Peer::wait(std::uint64_t transfer, std::chrono::milliseconds timeout) {
  return status_of(call(fmt::format("wait {} {}", transfer, timeout.count())));
}

Pair::Pair(const EndpointPlan& here, const EndpointPlan& there)
    : peer(there),
      endpoint(make_endpoint(here)),
      connection(must(endpoint.connect(peer.address(), peer.port(), kLimit), "connect")),
      at_peer(peer.accept()) {}

OwnRegion::OwnRegion(Endpoint& endpoint, std::uint64_t size)
    : pages(size), region(must(endpoint.register_memory(pages.data(), size), "register memory")) {}

::testing::AssertionResult is_ok(const Status& status) {
  if (status) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(status.error().code) << ": " << status.error().message;
}

::testing::AssertionResult is_error(const Status& status, std::initializer_list<ErrorCode> codes) {
  if (status) return ::testing::AssertionFailure() << "it succeeded";
  if (status.error().message.empty()) return ::testing::AssertionFailure() << "an error without a sentence";
  if (std::find(codes.begin(), codes.end(), status.error().code) != codes.end()) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << to_string(status.error().code) << ": " << status.error().message;
}

}  // namespace p2p::testing
