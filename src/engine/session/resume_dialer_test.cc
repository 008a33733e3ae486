// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_dialer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// What comes of dialling a peer whose system takes connections, and that says nothing itself; its machine
/// had been `dark`.
class ResumeDialerTest : public SessionTest {
 protected:
  Error outcome(std::chrono::milliseconds keepalive, Clock::duration dark, std::chrono::milliseconds hung) {
    ResumeDialer dialer(*reactor_, {.terms = {.hung = hung},
                                    .host = "127.0.0.1",
                                    .port = listener_.port(),
                                    .keepalive = keepalive,
                                    .heard_within = [](auto) { return false; }});
    std::promise<Error> ended;
    reactor_->post([&] {
      dialer.start(0, dark, [&](const auto& proven) {
        ended.set_value(proven ? Error{ErrorCode::kSystem, "proven"} : proven.error());
      });
    });
    auto end = ended.get_future();
    const bool in_time = end.wait_for(kPatience) == std::future_status::ready;
    std::promise<void> stopped;
    reactor_->post([&] {
      dialer.stop();
      stopped.set_value();
    });
    stopped.get_future().wait();
    return in_time ? end.get() : Error{ErrorCode::kTimedOut, "no end"};
  }
};

// It was also dark to a side that stood still itself.
TEST_F(ResumeDialerTest, AMachineThatTakesTheConnectionGetsTimeHoweverLongItWasDark) {
  for (const auto dark : {0s, 12s, 100s}) {
    EXPECT_THAT(outcome(6s, dark, 1s).message, HasSubstr("its machine answers")) << dark.count();
  }
}

}  // namespace
}  // namespace p2p::engine
