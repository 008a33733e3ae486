// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/dispatch.h"

#include <utility>
#include <variant>

#include "base/error.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

struct SessionVisitor {
  const Dispatch::Parts& parts;
  Status operator()(wire::ChannelOffer& m) const { return parts.lanes->on(m); }
  Status operator()(wire::ChannelAnswer& m) const { return parts.lanes->on(m); }
  Status operator()(wire::ChannelsReady& m) const { return parts.lanes->on(m); }
  Status operator()(wire::ChannelControl& m) const { return parts.lanes->on(std::move(m)); }
  Status operator()(wire::ChannelReopen& m) const { return parts.lanes->take_reopening(m); }
  Status operator()(wire::ChannelReopened& m) const { return parts.lanes->take_reopening(m); }
  Status operator()(wire::ChannelsRest& m) const { return parts.lanes->take_reopening(m); }
  Status operator()(wire::ChannelsWanted& m) const { return parts.lanes->take_reopening(m); }
  Status operator()(wire::RegionQuery& m) const { return parts.imports->answers().on(m), Status{}; }
  Status operator()(wire::RegionAnswer& m) const { return parts.imports->on(m); }
  Status operator()(wire::RegionRevoke& m) const { return parts.imports->on(m), Status{}; }
  Status operator()(wire::RegionRevoked& m) const { return parts.imports->answers().on(m), Status{}; }
  Status operator()(wire::DigestQuery& m) const { return parts.imports->answers().on(std::move(m)); }
  Status operator()(wire::DigestAnswer& m) const { return parts.verifier->on(m); }
  Status operator()(wire::MessageBlock& m) const {
    PostUnlockActions actions;
    parts.messages->take(m.block, actions);
    actions.run();
    parts.messages->flush();
    return {};
  }
  Status operator()(wire::Bye& m) const { return parts.bye(m), Status{}; }
  Status operator()(wire::Heartbeat&) const { return {}; }
  Status operator()(auto& m) const {
    return fail(ErrorCode::kProtocol, "a {} was not expected on the control connection",
                wire::name(wire::Message(std::move(m))));
  }
};

struct StreamVisitor {
  const Dispatch::Parts& parts;
  PostUnlockActions& actions;
  Status operator()(wire::EagerMessage& m) const { return parts.receives->on(m, actions); }
  Status operator()(wire::MessageWithdrawn& m) const { return parts.receives->on(m); }
  Status operator()(wire::ReceiveDone& m) const { return parts.receives->on(m, actions); }
  Status operator()(wire::ReceiveWanted& m) const { return parts.receives->on(m); }
  Status operator()(wire::SendsEnded& m) const { return parts.receives->on(m, actions), Status{}; }
  Status operator()(wire::ReceivePosted& m) const { return parts.sends->on(m, actions); }
  Status operator()(wire::ReceiveWithdrawn& m) const { return parts.sends->on(m, actions); }
  Status operator()(wire::MessageAnswered& m) const { return parts.sends->on(m, actions); }
  Status operator()(wire::MessageDeclined& m) const { return parts.sends->on(m, actions); }
  Status operator()(wire::Notify& m) const { return parts.notifications->on(m, actions); }
  Status operator()(wire::NotifyDone& m) const { return parts.notifications->on(m, actions), Status{}; }
  Status operator()(wire::NotifyTaken& m) const { return parts.notifications->on(m, actions); }
  Status operator()(auto& m) const {
    return fail(ErrorCode::kProtocol, "a {} does not belong to the message stream",
                wire::name(wire::Message(std::move(m))));
  }
};

}  // namespace

Status Dispatch::session_message(wire::Message& message) const {
  return std::visit(SessionVisitor{parts_}, message);
}

Status Dispatch::stream_message(wire::Message& message, PostUnlockActions& actions) const {
  return std::visit(StreamVisitor{parts_, actions}, message);
}

}  // namespace p2p::engine
