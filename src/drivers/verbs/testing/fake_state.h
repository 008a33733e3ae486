// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/verbs/table.h"
#include "drivers/verbs/testing/fake_provider.h"

// What the fake's calls work on. The structures of the library come first in each object, so that a pointer
// to one is a pointer to the other.
namespace p2p::verbs::testing {

struct FakeDevice : ibv_device {
  std::string label;
  bool up = true;
};

struct FakeContext : ibv_context {
  UniqueFd events_fd;
  std::deque<ibv_async_event> events;

  FakeDevice& fake_device() const { return *static_cast<FakeDevice*>(device); }
};

struct FakeChannel : ibv_comp_channel {
  UniqueFd events_fd;
  std::deque<ibv_cq*> events;
};

struct FakeQueue : ibv_cq {
  std::deque<ibv_wc> completions;
  bool armed = false;
};

struct FakeRegion : ibv_mr {
  int access = 0;
};

struct FakeRequest {
  ibv_send_wr raw{};
  std::vector<ibv_sge> pieces;
  std::vector<std::byte> carried;
};

struct FakePair : ibv_qp {
  unsigned depth = 0;
  std::uint32_t peer = 0;
  std::deque<FakeRequest> requests;
  std::deque<std::uint64_t> receives;
};

struct FakeProvider::State {
  explicit State(const Settings& wanted);

  // All of it under the mutex. Each ends with the completions that follow from it.
  int post(FakePair& pair, ibv_send_wr* first, ibv_send_wr** bad);
  void work(FakePair& pair, unsigned most);
  void work_all(unsigned most);
  void stop(FakePair& pair);
  void say(FakeContext& context, const ibv_async_event& event);
  void say_all(const FakeDevice& device, const ibv_async_event& event);
  void complete(ibv_cq* queue, const ibv_wc& completion);

  Settings settings;
  Library library;
  std::mutex mutex;
  Counts counts;
  Connected connected;
  bool holding = false;
  std::optional<std::pair<std::uint64_t, Failure>> failure;
  std::uint32_t next_number = 100;
  std::deque<FakeDevice> devices;
  std::vector<FakeContext*> contexts;
  std::map<std::uint32_t, FakePair*> pairs;
  std::map<std::uint32_t, FakeRegion*> regions;

 private:
  void count(const FakePair& pair, const ibv_send_wr& request);
  bool done(FakePair& pair, const FakeRequest& request);
  ibv_wc_status outcome(FakePair& pair, FakePair* peer, const FakeRequest& request);
  ibv_wc_status move(FakePair& peer, const FakeRequest& request);
  std::byte* at(std::uint32_t key, std::uint64_t address, std::uint64_t size) const;
};

/// The one that exists.
FakeProvider::State& current_state();

/// The library's functions over it.
Library fake_library();

}  // namespace p2p::verbs::testing
