// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "wire/messages.h"

namespace p2p::wire {

/// The message as one frame. Its size is at most kMaxFrameBytes if the caller cut long contents into pieces;
/// a peer refuses longer ones.
Bytes encode(const Message& message);

/// The type's name, for errors: "RegionQuery".
std::string_view name(const Message& message);

}  // namespace p2p::wire
