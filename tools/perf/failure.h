// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "p2p/result.h"

namespace p2p::perf {

/// An unexpected Error with a formatted sentence, to be returned from a function with a Result.
template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// "<what>: <text of errno>".
inline tl::unexpected<Error> fail_errno(std::string_view what, int error_number = errno) {
  return fail(ErrorCode::kSystem, "{}: {}", what, std::system_category().message(error_number));
}

}  // namespace p2p::perf
