// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "p2p/result.h"

/// Copies to and from memory of the program, which may have become bad since it was registered: unmapped,
/// protected, or behind the end of its file. The system makes them, so that bad memory is an answer and not a
/// signal that ends the process. They cost some 200 ns more than memcpy. Any thread.
namespace p2p {

/// Both answer how many bytes they copied, in order: fewer than `bytes`, which the pieces have behind the
/// first `skip`, if the program's memory is bad there.
std::size_t copy_out(std::span<const iovec> to, const std::byte* from, std::size_t bytes,
                     std::size_t skip = 0);
std::size_t copy_in(std::byte* to, std::span<const iovec> from, std::size_t bytes, std::size_t skip = 0);

/// As copy_out, but goes on behind memory that is bad. False: some of it was, and has lost its bytes.
bool land(std::span<const iovec> to, const std::byte* from, std::size_t bytes, std::size_t skip = 0);

/// Between two places of the program's memory, which may overlap. False if either is bad.
bool copy_across(std::byte* to, const std::byte* from, std::size_t bytes);

/// A look at each page, for who leaves the copy to others. `writable` is false also of memory of devices, and
/// true where the system cannot tell.
bool readable(std::span<const iovec> pieces);
bool writable(const iovec& piece);

/// This thread's room, for bytes on their way: to copy out of it or into it saves a step. The other calls
/// here use it, too.
std::span<std::byte> copy_room();

/// The error for memory that turned out bad when `attempted` ("write to") was done with it.
Error bad_memory(std::string_view attempted, std::span<const iovec> pieces);
Error bad_memory(std::string_view attempted, const void* data, std::size_t bytes);

}  // namespace p2p
