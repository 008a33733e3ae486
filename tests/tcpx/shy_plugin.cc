// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// softnet, except that of all posts only each third gets a request: the others are told to try again, as the
// ABI allows. With TCPX_TEST_SHY=never no receive gets one.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "drivers/nccl_net/abi/v7.h"

namespace {

namespace abi = p2p::nccl_net::abi;
const abi::v7::Table* softnet = nullptr;
std::atomic<unsigned> posts{0};

bool shies() { return posts++ % 3 != 2; }

bool never_receives() {
  const char* const text = std::getenv("TCPX_TEST_SHY");
  return text != nullptr && std::strcmp(text, "never") == 0;
}

int isend(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
  if (!shies()) return softnet->isend(comm, data, size, tag, mhandle, request);
  *request = nullptr;
  return abi::kSuccess;
}

int irecv(void* comm, int count, void** data, int* sizes, int* tags, void** mhandles, void** request) {
  if (!shies() && !never_receives()) {
    return softnet->irecv(comm, count, data, sizes, tags, mhandles, request);
  }
  *request = nullptr;
  return abi::kSuccess;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) abi::v7::Table ncclNetPlugin_v7;

abi::v7::Table ncclNetPlugin_v7 = [] {
  void* const library = ::dlopen(SOFTNET_PATH, RTLD_NOW | RTLD_LOCAL);
  softnet = static_cast<const abi::v7::Table*>(::dlsym(library, abi::v7::kSymbol));
  abi::v7::Table table = *softnet;
  table.isend = isend;
  table.irecv = irecv;
  return table;
}();
