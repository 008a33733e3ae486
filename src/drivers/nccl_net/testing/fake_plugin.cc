// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/testing/fake_plugin.h"

#include <cstdlib>
#include <tuple>
#include <type_traits>

#include FAKE_HEADER

/// A net plugin of version FAKE_VERSION (v5 to v12) that moves nothing and writes down what it was told. Each
/// function is a template that takes its signature from the member of the table it is assigned to, so that
/// one source serves every version and each copy is called with that version's own arguments.
namespace {

namespace abi = p2p::nccl_net::abi;
namespace version = p2p::nccl_net::abi::FAKE_VERSION;

p2p::nccl_net::testing::FakeState state;
int token = 0;
int flush_token = 0;
char device_name[] = "fake0";

template <class... Arguments>
auto last(Arguments... arguments) {
  return std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...));
}

int devices(int* count) {
  *count = state.device_count;
  return 0;
}

int get_properties(int index, version::Properties* properties) {
  *properties = {};
  properties->name = index == 0 ? device_name : nullptr;
  properties->guid = 77;
  properties->pointer_support = 1;
  properties->speed = 200000;
  properties->port = 3;
  properties->latency = 1.5f;
  properties->max_comms = 5;
  properties->max_receives = 1;
  return 0;
}

template <class... Arguments>
int listen(Arguments... arguments) {
  *last(arguments...) = &token;
  return 0;
}

/// The comm comes before the device handle, where there is one.
template <class... Arguments>
void** comm_of(Arguments... arguments) {
  constexpr bool kHasDeviceHandle = std::is_same_v<decltype(last(arguments...)), abi::DeviceHandle**>;
  return std::get<sizeof...(Arguments) - (kHasDeviceHandle ? 2 : 1)>(std::tuple(arguments...));
}

template <class... Arguments>
int connect(Arguments... arguments) {
  *comm_of(arguments...) = state.connects_pending-- > 0 ? nullptr : &token;
  return 0;
}

template <class... Arguments>
int accept(Arguments... arguments) {
  *comm_of(arguments...) = state.accepts_pending-- > 0 ? nullptr : &token;
  return 0;
}

template <class Size>
int reg_mr(void*, void*, Size size, int, void** mhandle) {
  state.registered = static_cast<std::uint64_t>(size);
  *mhandle = &token;
  return 0;
}

int dereg_mr(void*, void*) { return ++state.deregistered, 0; }

template <class... Arguments>
int isend(Arguments... arguments) {
  state.sent = static_cast<std::uint64_t>(std::get<2>(std::tuple(arguments...)));
  *last(arguments...) = &token;
  return 0;
}

template <class... Arguments>
int irecv(Arguments... arguments) {
  const auto all = std::tuple(arguments...);
  state.received = static_cast<std::uint64_t>(*std::get<3>(all));
  *last(arguments...) = &token;
  return std::get<1>(all) == 1 ? 0 : 3;
}

int iflush(void*, int count, void** data, int* sizes, void** mhandles, void** request) {
  if (count != 1 || data[0] == nullptr || sizes[0] <= 0 || mhandles[0] != &token) return 3;
  ++state.flushed;
  if (state.flushes_pending >= 0) *request = &flush_token;
  return 0;
}

int test(void* request, int* done, int*) {
  *done = request != &flush_token || state.flushes_pending-- <= 0;
  return 0;
}

int close_comm(void*) { return ++state.closed, 0; }

template <class... Arguments>
int irecv_consumed(Arguments...) {
  return ++state.consumed, 0;
}

template <class Table>
void offer_optional(Table& table) {
  table.iflush = iflush;
  if constexpr (requires { table.irecv_consumed; }) table.irecv_consumed = irecv_consumed;
}

template <class... Arguments>
int init(Arguments...);

}  // namespace

extern "C" {
__attribute__((visibility("default"))) p2p::nccl_net::testing::FakeState* fake_state();
__attribute__((visibility("default"))) version::Table FAKE_SYMBOL = {.name = "Fake", .init = init};

p2p::nccl_net::testing::FakeState* fake_state() {
  state.name = [](const char* name) { FAKE_SYMBOL.name = name; };
  return &state;
}
}

namespace {

template <class... Arguments>
int init(Arguments...) {
  ++state.inits;
  if (state.init_aborts) std::abort();
  if (state.init_code != 0) return state.init_code;
  version::Table& table = FAKE_SYMBOL;
  table.devices = devices;
  table.get_properties = get_properties;
  table.listen = listen;
  table.connect = connect;
  table.accept = accept;
  table.reg_mr = reg_mr;
  table.dereg_mr = dereg_mr;
  table.isend = isend;
  table.irecv = irecv;
  if (!state.leave_out_test) table.test = test;
  table.close_send = table.close_recv = table.close_listen = close_comm;
  if (!state.leave_out_optional) offer_optional(table);
  return 0;
}

}  // namespace
