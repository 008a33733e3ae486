// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/announcement.h"

#include <charconv>

#include "base/error.h"

namespace p2p::engine {

Result<Announcement> Announcement::parse(std::string_view text) {
  std::string_view host = text;
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    const std::string_view behind = end == std::string_view::npos ? text : text.substr(end + 1);
    has_port = behind.starts_with(':');
    if (!behind.empty() && !has_port) host = {};
    if (!host.empty()) host = text.substr(1, end - 1);
    if (has_port) port = behind.substr(1);
  } else if (const std::size_t colon = text.find(':');
             colon == text.rfind(':') && colon != std::string_view::npos) {
    has_port = true;
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  Announcement found{std::string(host), 0};
  bool good = !host.empty() && host.find_first_of("[] \t") == std::string_view::npos;
  if (has_port) {
    const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), found.port);
    good = good && error == std::errc{} && stop == port.data() + port.size() && found.port != 0;
  }
  if (good) return found;
  return fail(ErrorCode::kInvalidArgument,
              "announce \"{}\": neither a host nor host:port (an address of IPv6 with a port in brackets)",
              text);
}

}  // namespace p2p::engine
