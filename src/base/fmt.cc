// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The only file that has fmt's code; all others see declarations. To link the system's libfmt instead would
// tie programs to its version.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// What format.h declares extern; the library formats no wide characters.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;

}  // namespace detail
FMT_END_NAMESPACE
