// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "wire/messages.h"

namespace p2p::wire {

/// The message as one frame. Its size is at most kMaxFrameBytes if the caller cut long contents into pieces;
/// a peer refuses longer ones.
Bytes encode(const Message& message);

/// The same, in place of what `frame` held.
void encode(const Message& message, Bytes& frame);

/// Makes room in the lengths of a frame for contents that follow it in memory: those of its last field, which
/// is Bytes and empty in the frame.
void lengthen(std::span<std::byte> frame, std::uint32_t tail_bytes);

/// The type's name, for errors: "RegionQuery".
std::string_view name(const Message& message);

}  // namespace p2p::wire
