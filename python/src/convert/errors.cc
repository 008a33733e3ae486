// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/errors.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

thread_local Error latest;

}  // namespace

const Error& last_error() { return latest; }

void set_last_error(Error error) { latest = std::move(error); }

void raise(const Error& error) {
  set_last_error(error);
  const std::string_view code = to_string(error.code);
  nb::object make = nb::module_::import_("uccl._errors").attr("from_code");
  nb::object exception = make(nb::str(code.data(), code.size()), nb::str(error.message.c_str()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace p2p::python
