// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "held.h"
#include "p2p/weights/subscriber.h"

namespace p2p::weights {

/// What callers ask of it is in subscriber.cc, what others say to it in subscriber_talk.cc.
class Subscriber::Impl : public Node {
 public:
  using Clock = std::chrono::steady_clock;

  Impl(Endpoint endpoint, std::vector<Member> publishers, const SubscriberOptions& options)
      : Node(std::move(endpoint)),
        chunk_bytes_(options.chunk_bytes),
        stall_(std::min<std::chrono::milliseconds>(options.stall, std::chrono::hours(24 * 365))) {
    for (Member& member : publishers) directories_.push_back({std::move(member), nullptr, {}});
    start();
  }
  ~Impl() override { stop(); }

  Result<std::uint64_t> wait_version(std::optional<std::uint64_t> above, std::chrono::nanoseconds timeout);
  Status stage(std::uint64_t version, const Manifest& wanted, const StageOptions& options);
  Result<std::uint64_t> commit();
  std::optional<std::uint64_t> committed();
  Status drop(std::uint64_t version);

 private:
  struct Directory {
    Member place;
    LinkPtr link;
    Clock::time_point dialled;
    Clock::time_point opened;
    std::string why{};  // the last link to it has failed; empty: it has not
  };
  struct Offered {
    Key key;
    Key base;
    LinkPtr link;
  };
  void take_offer(const LinkPtr& link, const Offer& offer);
  void use_base(Held& held, const Key& publication);
  static Offer offer_of(const Held& held);
  void on_open(const LinkPtr& link) override;
  void on_lost(const LinkPtr& link) override;
  void on_message(const LinkPtr& link, Message message) override;
  bool step() override;
  void tell(Samples& samples) override {
    for (const auto& [version, held] : held_) held->tell(samples);
  }
  bool busy() const override { return staging_ != nullptr; }

  void redial();
  std::string unreached() const;
  bool may_offer(const Held& held, const Directory& directory) const;
  void join(Held& held);
  void ask_again(Held& held);
  void take(const LinkPtr& link, Held& held, const Message& message);
  Held* find(const Key& key);
  Result<std::unique_ptr<Held>> prepare(std::uint64_t version, const Manifest& wanted,
                                        const StageOptions& options);
  Status make_room(Held& held, bool in_place);
  Status await(std::unique_lock<std::mutex>& lock, Held& held, const StageOptions& options);
  std::unique_ptr<Held> remove(std::uint64_t version);

  const std::uint64_t chunk_bytes_;
  const std::chrono::milliseconds stall_;
  std::vector<Directory> directories_;
  std::vector<Offered> offers_;
  std::map<std::uint64_t, std::unique_ptr<Held>> held_;
  Held* staging_ = nullptr;
  bool in_stage_ = false;
  std::optional<std::uint64_t> staged_;
  std::optional<std::uint64_t> committed_;
};

}  // namespace p2p::weights
