// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// softnet without a mark that it is one, so that its name is believed. While TCPX_TEST_SHY=never no receive
// gets a request: they are told to try again, as the ABI allows.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "drivers/nccl_net/abi/v7.h"

namespace {

namespace abi = p2p::nccl_net::abi;
const abi::v7::Table* softnet = nullptr;
bool never_receives() {
  const char* const text = std::getenv("TCPX_TEST_SHY");
  return text != nullptr && std::strcmp(text, "never") == 0;
}

int irecv(void* comm, int count, void** data, int* sizes, int* tags, void** mhandles, void** request) {
  if (!never_receives()) return softnet->irecv(comm, count, data, sizes, tags, mhandles, request);
  *request = nullptr;
  return abi::kSuccess;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) abi::v7::Table ncclNetPlugin_v7;

abi::v7::Table ncclNetPlugin_v7 = [] {
  void* const library = ::dlopen(SOFTNET_PATH, RTLD_NOW | RTLD_LOCAL);
  softnet = static_cast<const abi::v7::Table*>(::dlsym(library, abi::v7::kSymbol));
  abi::v7::Table table = *softnet;
  table.irecv = irecv;
  return table;
}();
