// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

// Some names exist twice, and the older one has structures of its own; others never changed.
template <class Function>
bool find(void* library, const char* name, Function& function) {
  void* found = ::dlvsym(library, name, "IBVERBS_1.1");
  if (found == nullptr) found = ::dlsym(library, name);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

// Returns the name that is missing; null if none is.
const char* fill(void* library, Library& table) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!find(library, name, function) && missing == nullptr) missing = name;
  };
  need("ibv_get_device_list", table.get_device_list);
  need("ibv_free_device_list", table.free_device_list);
  need("ibv_get_device_name", table.get_device_name);
  need("ibv_open_device", table.open_device);
  need("ibv_close_device", table.close_device);
  need("ibv_query_device", table.query_device);
  need("ibv_query_port", table.query_port);
  need("_ibv_query_gid_table", table.query_gid_table);
  need("ibv_alloc_pd", table.alloc_pd);
  need("ibv_dealloc_pd", table.dealloc_pd);
  need("ibv_reg_mr", table.reg_mr);
  need("ibv_dereg_mr", table.dereg_mr);
  need("ibv_create_comp_channel", table.create_comp_channel);
  need("ibv_destroy_comp_channel", table.destroy_comp_channel);
  need("ibv_create_cq", table.create_cq);
  need("ibv_destroy_cq", table.destroy_cq);
  need("ibv_get_cq_event", table.get_cq_event);
  need("ibv_ack_cq_events", table.ack_cq_events);
  need("ibv_create_qp", table.create_qp);
  need("ibv_modify_qp", table.modify_qp);
  need("ibv_destroy_qp", table.destroy_qp);
  need("ibv_get_async_event", table.get_async_event);
  need("ibv_ack_async_event", table.ack_async_event);
  need("ibv_wc_status_str", table.wc_status_str);
  need("ibv_event_type_str", table.event_type_str);
  find(library, "ibv_reg_dmabuf_mr", table.reg_dmabuf_mr);
  return missing;
}

Result<Library> open() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(ErrorCode::kUnavailable, "no RDMA library: {}", ::dlerror());
  Library table;
  const char* missing = fill(library, table);
  if (missing == nullptr) return table;
  return fail(ErrorCode::kUnavailable, "{} is too old: it has no {} (rdma-core 32 has)", kLibrary, missing);
}

}  // namespace

Result<const Library*> load_library() {
  static const Result<Library> library = open();
  if (!library) return tl::unexpected<Error>(library.error());
  return &*library;
}

}  // namespace p2p::verbs
