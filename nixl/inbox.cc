// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "inbox.h"

#include <utility>

namespace p2p::nixl {
namespace {

constexpr std::string_view kNoteMark = "UCCLNIXL agent ";

std::string decode_note(std::string_view note) {
  if (!note.starts_with(kNoteMark) || note.size() > kNoteMark.size() + kMaxAgentName) return {};
  return std::string(note.substr(kNoteMark.size()));
}

}  // namespace

std::string encode_note(std::string_view agent) { return std::string(kNoteMark) + std::string(agent); }

void Inbox::take(notif_list_t& out) {
  const std::lock_guard lock(mutex_);
  while (auto accepted = endpoint_.accept(std::chrono::nanoseconds::zero())) {
    std::string agent = decode_note(accepted->peer().note);
    sources_.push_back({std::move(*accepted), std::move(agent)});
  }
  std::erase_if(sources_, [&](const Source& source) {
    const bool ended =
        source.connection.state() == ConnectionState::kClosed;  // looked at first: it may end now
    for (std::string& message : source.connection.take_notifications()) {
      if (!source.agent.empty()) out.emplace_back(source.agent, std::move(message));
    }
    return ended;
  });
}

}  // namespace p2p::nixl
