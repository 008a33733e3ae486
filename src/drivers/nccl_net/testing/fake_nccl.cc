// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0

// NOLINTBEGIN(readability-identifier-naming): NCCL's name

/// A library that is called libnccl.so.2 and is nothing else.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version);

extern "C" int ncclGetVersion(int* version) {
  *version = 0;
  return 0;
}

// NOLINTEND(readability-identifier-naming)
