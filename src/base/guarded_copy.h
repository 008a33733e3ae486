// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>

/// Copies to and from memory of the program, which may have become bad since it was registered. Bad memory is
/// an answer, as with base/safe_copy.h, at the price of memcpy: a handler of SIGSEGV and SIGBUS leads out of
/// the one routine that copies, and out of `guarded_read`. All other faults go to the handlers that the
/// program had before.
namespace p2p {

/// False if either is bad there; some of the bytes may have been copied then. Any thread.
bool guarded_copy(void* to, const void* from, std::size_t bytes);

/// From pieces of memory that lie here and there to one place and back, the next pieces on their way into the
/// cache meanwhile. How many bytes, behind the first `skip` of the pieces: fewer than `bytes` where a piece
/// is bad, of which some may have been copied, or where the system has to copy.
std::size_t guarded_gather(std::byte* to, std::span<const iovec> from, std::size_t bytes, std::size_t skip);
std::size_t guarded_scatter(std::span<const iovec> to, const std::byte* from, std::size_t bytes,
                            std::size_t skip);

/// Reads a byte of each page, and writes one of each as it is, whoever else writes there. False: some of it
/// is bad. Nothing: the system has to look. Costs a fifth of what that takes.
std::optional<bool> guarded_look(const void* from, std::size_t bytes);
std::optional<bool> guarded_touch(void* to, std::size_t bytes);

/// Has `read(argument)` read these bytes where they lie. It may be left at any of them, so it holds no lock,
/// owns nothing, and reads nothing by this. False: some of them are bad, and it was left. Nothing: it was not
/// called, since the handler is not in place.
std::optional<bool> guarded_read(std::span<const std::byte> bytes, void (*read)(void* argument),
                                 void* argument);

/// Looks whether the program has put other handlers in place since. They are left alone, and the system
/// copies as long as they are there, at half the rate. Costs two calls of the system.
void look_after_guard();

}  // namespace p2p
