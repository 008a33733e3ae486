// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "p2p/result.h"

namespace p2p {

/// An Error with a formatted sentence, to be returned from a function that gives a Result.
template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// "<what>: <text of errno>", as kSystem, or kPermissionDenied for EPERM and EACCES.
Error system_error(std::string_view what, int error_number = errno);

/// Moves the value of `made` into `target`, or returns its error and leaves `target` alone.
template <class T>
Status move_into(T& target, Result<T> made) {
  if (!made) return tl::unexpected(std::move(made.error()));
  target = std::move(*made);
  return {};
}

}  // namespace p2p
