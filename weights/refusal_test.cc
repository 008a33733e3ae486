// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a subscriber says of publishers that it cannot have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "message.h"
#include "p2p/endpoint.h"
#include "p2p/weights/subscriber.h"

namespace p2p::weights {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Endpoint with_note(const std::string& note) {
  Options options;
  options.listen_address = "127.0.0.1";
  Endpoint made = Endpoint::create(options).value();
  made.set_note(note);
  return made;
}

/// What a subscriber that names these says while it waits for a version, once that has all of `words`.
std::string said_of(const std::vector<Endpoint*>& publishers, const std::vector<std::string>& words,
                    bool close) {
  SubscriberOptions options;
  options.endpoint.listen_address = "127.0.0.1";
  for (Endpoint* one : publishers) {
    options.publishers.push_back("127.0.0.1:" + std::to_string(one->port()));
  }
  const auto subscriber = std::move(Subscriber::create(options).value());
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  std::string said;
  do {
    for (Endpoint* one : publishers) {
      while (const auto met = close ? one->accept(0ns) : Result<Connection>(tl::unexpected(Error{}))) {
        EXPECT_TRUE(met->close(0ns));
      }
    }
    said = subscriber.wait_version(std::nullopt, 10ms).error().message;
  } while (std::chrono::steady_clock::now() < deadline &&
           !std::ranges::all_of(words, [&](const auto& word) { return said.find(word) != said.npos; }));
  return said;
}

TEST(Refusal, SaysThatAPeerIsOfAnotherReleaseOrNoMember) {
  std::string note = encode_note("127.0.0.1", 4000);
  --note[std::string_view("uccl.weights ").size()];
  for (const bool closes : {false, true}) {  // it refuses this one, too
    Endpoint other = with_note(note);
    Endpoint stranger = with_note("something else");
    const std::string of = "127.0.0.1:" + std::to_string(other.port()) + ": it is of a release with other";
    const std::string or_else =
        "127.0.0.1:" + std::to_string(stranger.port()) + ": it is no publisher or subscriber of weights";
    EXPECT_THAT(said_of({&other, &stranger}, {of, or_else}, closes),
                AllOf(StartsWith("No version is offered yet; "), HasSubstr(of), HasSubstr(or_else)));
  }
}

}  // namespace
}  // namespace p2p::weights
