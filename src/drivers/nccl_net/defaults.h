// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace p2p::nccl_net {

/// GPUDirect-TCPX reads its settings from the environment at `init`, and some of its own defaults do not
/// work. For that plugin, sets those that the user left unset and logs each; for any other it does nothing.
void set_plugin_defaults(std::string_view plugin_name);

/// Where RxDM has its sockets on machines of A3 High.
inline constexpr const char* kReceiveManagerFolder = "/run/tcpx";

/// A variable of the plugin's as it is now.
std::optional<std::string> plugin_variable(const char* name);

/// As the user left it, before any default was set.
std::optional<std::string> users_variable(const char* name);

}  // namespace p2p::nccl_net
