// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "p2p/result.h"

namespace p2p::python {

inline tl::unexpected<Error> failure(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

/// This thread's latest failure that was reported by a value (False, or a tuple with it).
const Error& last_error();
void set_last_error(Error error);

/// Throws the Python exception of `uccl._errors` that belongs to the error's code.
[[noreturn]] void raise(const Error& error);

/// True, or False with last_error() set.
inline bool succeeded(const Status& status) {
  if (status) return true;
  set_last_error(status.error());
  return false;
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

inline void raise_unless(const Status& status) {
  if (!status) raise(status.error());
}

}  // namespace p2p::python
