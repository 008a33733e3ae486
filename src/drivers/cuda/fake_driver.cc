// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// For foreign_pointer_test: a library of the driver's name with the one function that is asked.
#include "p2p/api.h"

// NOLINTBEGIN(readability-identifier-naming): the driver's name
extern "C" P2P_API int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer);

int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer) {
  const unsigned high = static_cast<unsigned>(pointer >> 40);
  if (high != 0x70 && high != 0x71) return 1;
  const bool managed = high == 0x71;
  *static_cast<unsigned*>(value) = attribute == 2 ? 2U : managed ? 1U : 0U;
  return 0;
}
// NOLINTEND(readability-identifier-naming)
