// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include "failure.h"

namespace p2p::nixl {
namespace {

// Both came with 1.0, together with today's order of the virtual functions; 0.10 has other names for them.
constexpr const char* kMarkers[] = {
    "_ZNK9nixlAgent11prepMemViewERK12nixlDescListI13nixlBasicDescERPvPK21nixlAgentOptionalArgs",
    "_ZNK9nixlAgent11prepMemViewERK12nixlDescListI14nixlRemoteDescERPvPK21nixlAgentOptionalArgs",
};

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};

tl::unexpected<Error> refused(const std::string& why) {
  return failure(ErrorCode::kUnavailable, "NIXL backend TCPX works with NIXL 1.0 to 1.5: " + why);
}

}  // namespace

Status check_host(void* caller) {
  Dl_info where{};
  if (dladdr(caller, &where) == 0 || where.dli_fname == nullptr) {
    return refused("its caller lies in no library");
  }
  const std::string path = where.dli_fname;
  // Where it is loaded already, privately: the global symbols do not include it.
  const std::unique_ptr<void, CloseLibrary> library(dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD));
  if (!library) return refused(path + " cannot be asked what it is");
  for (const char* marker : kMarkers) {
    if (dlsym(library.get(), marker) == nullptr)
      return refused(path + " is another version, or no NIXL at all");
  }
  return {};
}

}  // namespace p2p::nixl
