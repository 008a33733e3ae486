// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/guarded.h"
#include "drivers/nccl_net/log_route.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"
#include "drivers/nccl_net/trial.h"

namespace p2p::nccl_net {
namespace {

struct Library {
  std::string path;
  void* handle = nullptr;
};

/// Libraries by dlopen's handle. Plugins outlive everything, so this is never destroyed.
struct Opened {
  Mutex mutex;
  std::map<void*, std::shared_ptr<Plugin>> plugins P2P_GUARDED_BY(mutex);
  std::vector<UniqueFd> copies P2P_GUARDED_BY(mutex);  // files of private copies
};

Opened& opened() {
  static Opened* const all = new Opened;
  return *all;
}

std::vector<std::string> candidates(const std::string& name) {
  if (name.empty()) return {"libnccl-net.so"};
  std::vector<std::string> paths;
  std::string_view left = name;
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(','), left.size());
    const std::string part(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
    if (part.empty()) continue;
    paths.push_back(part);
    if (part.find('/') == std::string::npos) paths.push_back("libnccl-net-" + part + ".so");
  }
  return paths;
}

Result<Library> find_library(const std::string& name) {
  if (name == "none") return fail(ErrorCode::kUnavailable, "the net plugin is set to none");
  std::string reasons;
  for (const std::string& path : candidates(name)) {
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library{path, handle};
    const char* reason = ::dlerror();
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", reason == nullptr ? path : reason);
  }
  if (name.empty()) return fail(ErrorCode::kUnavailable, "the default one does not open: {}", reasons);
  return fail(ErrorCode::kUnavailable, "no NCCL net plugin opens for '{}': {}", name, reasons);
}

std::string name_of(const Net& net) { return net.name() == nullptr ? "" : net.name(); }

bool nccl_is_loaded() {
  void* const nccl = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (nccl == nullptr) return false;
  ::dlclose(nccl);
  return true;
}

Result<std::unique_ptr<Net>> find_net(const Library& library) {
  if (auto net = adapt_newest(library.handle)) return guarded(std::move(net));
  for (int version = 2; version <= 32; ++version) {
    const std::string symbol = fmt::format("ncclNetPlugin_v{}", version);
    if (::dlsym(library.handle, symbol.c_str()) != nullptr) {
      return fail(ErrorCode::kUnavailable, "{} has {} only, and v5 to v12 are what we know", library.path,
                  symbol);
    }
  }
  return fail(ErrorCode::kUnavailable, "{} is no NCCL net plugin: none of ncclNetPlugin_v5 to v12 in it",
              library.path);
}

Status try_unknown(const Library& library, Net& net, Plugin::Init init) {
  const std::string name = name_of(net);
  const bool no_cuda = init == Plugin::Init::kTriedFirst;
  if (is_tcpxo(name) && !is_softnet(library.handle)) {
    // Where CUDA is in use a child cannot use it, and would end for that alone.
    if (Status answers = check_tcpxo_manager(); !answers) return answers;
  }
  if (knows_handles_of(name) && !(no_cuda && is_gpudirect(name))) return {};
  return try_init(net, no_cuda ? CudaInUse::kNo : CudaInUse::kYes);
}

Result<std::unique_ptr<Net>> initialise(const Library& library, Plugin::Init init) {
  auto net = find_net(library);
  if (!net) return net;
  set_plugin_defaults(name_of(**net));
  if (const auto tried = try_unknown(library, **net, init); !tried) {
    return fail(tried.error().code, "{}: {}", library.path, tried.error().message);
  }
  if (const int code = (*net)->init(route_log); code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("init of {}", library.path)));
  }
  return net;
}

/// A second instance of the library with data of its own. Its file goes to `files`: the loader knows it by
/// the descriptor's number, which must stay its own.
Result<Library> load_copy(const Library& library, std::vector<UniqueFd>& files) {
  link_map* map = nullptr;
  const auto fails = [&](const char* step) { return tl::unexpected(system_error(step)); };
  if (::dlinfo(library.handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) {
    return fail(ErrorCode::kSystem, "find its file");
  }
  const UniqueFd file = UniqueFd::of(::open, map->l_name, O_RDONLY | O_CLOEXEC);
  UniqueFd copy = UniqueFd::of(::memfd_create, "net plugin", MFD_CLOEXEC);
  struct stat status{};
  if (!file || !copy || ::fstat(file.get(), &status) != 0) return fails("copy its file");
  for (off_t at = 0; at < status.st_size;) {
    if (::sendfile(copy.get(), file.get(), &at, static_cast<std::size_t>(status.st_size - at)) <= 0) {
      return fails("copy its file");
    }
  }
  const std::string path = fmt::format("/proc/self/fd/{}", copy.get());
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::kUnavailable, "{}", ::dlerror());
  files.push_back(std::move(copy));
  return Library{library.path, handle};
}

/// A plugin is initialised once, and NCCL has done it: a copy of its file is another plugin.
Result<std::unique_ptr<Net>> initialise_copy(const Library& library, Error error,
                                             std::vector<UniqueFd>& files) {
  const auto copy = load_copy(library, files);
  auto net = copy ? initialise(*copy, Plugin::Init::kHere) : tl::unexpected(copy.error());
  if (net) {
    log(LogLevel::kInfo, "{} ({}), as NCCL is loaded in this process: a private copy is used", error.message,
        library.path);
    return net;
  }
  error.message += fmt::format(
      ". NCCL is loaded in this process, and a private copy does not work either: {}", net.error().message);
  return tl::unexpected(std::move(error));
}

int numa_node_of(const std::string& pci_path) {
  if (pci_path.empty()) return -1;
  std::ifstream file(pci_path + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

std::string_view code_name(int code) {
  switch (code) {
    case abi::kUnhandledCudaError: return "unhandled CUDA error";
    case abi::kSystemError: return "system error";
    case abi::kInternalError: return "internal error";
    case abi::kInvalidArgument: return "invalid argument";
    case abi::kInvalidUsage: return "invalid usage";
    case abi::kRemoteError: return "remote error";
    case abi::kInProgress: return "in progress";
    default: return "unknown code";
  }
}

ErrorCode code_of(int code) {
  switch (code) {
    case abi::kRemoteError: return ErrorCode::kPeerGone;
    case abi::kInvalidArgument:
    case abi::kInvalidUsage: return ErrorCode::kInvalidArgument;
    default: return ErrorCode::kSystem;
  }
}

}  // namespace

Error plugin_error(int code, const std::string& what) {
  return {code_of(code), fmt::format("{}: {} ({})", what, code_name(code), code)};
}

std::string Device::label() const {
  return properties.name.empty() ? fmt::format("device {}", index) : properties.name;
}

Plugin::Plugin(std::string path, std::unique_ptr<Net> net) : path_(std::move(path)), net_(std::move(net)) {}

std::string Plugin::name() const { return net_->name() == nullptr ? "(no name)" : net_->name(); }

Result<std::string> Plugin::peek_name(const std::string& name) {
  const auto library = find_library(name);
  if (!library) return tl::unexpected(library.error());
  const auto net = find_net(*library);
  if (!net) return tl::unexpected(net.error());
  return name_of(**net);
}

Result<std::shared_ptr<Plugin>> Plugin::open(const std::string& name, Init init) {
  const auto library = find_library(name);
  if (!library) return tl::unexpected(library.error());
  Opened& all = opened();
  MutexLock lock(all.mutex);
  if (const auto found = all.plugins.find(library->handle); found != all.plugins.end()) return found->second;
  auto net = initialise(*library, init);
  if (!net && nccl_is_loaded()) net = initialise_copy(*library, net.error(), all.copies);
  if (!net) return tl::unexpected(net.error());
  if (const char* member = (*net)->missing_member()) {
    return fail(ErrorCode::kUnavailable, "{} leaves {} of its v{} table null", library->path, member,
                (*net)->version());
  }
  auto plugin = std::make_shared<Plugin>(library->path, std::move(*net));
  log(LogLevel::kInfo, "net plugin {} from {}, ABI v{}", plugin->name(), plugin->path(), plugin->version());
  all.plugins.emplace(library->handle, plugin);
  return plugin;
}

Result<std::vector<Device>> Plugin::devices() const {
  int count = 0;
  if (const int code = net_->devices(&count); code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("devices of {}", path_)));
  }
  if (count <= 0) return fail(ErrorCode::kUnavailable, "{} ({}) reports no device", name(), path_);
  std::vector<Device> found;
  for (int index = 0; index < count; ++index) {
    Device device{.index = index};
    if (const int code = net_->properties(index, device.properties); code != abi::kSuccess) {
      return tl::unexpected(
          plugin_error(code, fmt::format("getProperties of device {} of {}", index, path_)));
    }
    device.numa_node = numa_node_of(device.properties.pci_path);
    found.push_back(std::move(device));
  }
  return found;
}

Result<Handle> Plugin::own_handle(const Device& device) {
  const MutexLock lock(mutex_);
  if (own_handle_) return *own_handle_;
  Handle handle{};
  void* listening = nullptr;
  if (const int code = net_->listen(device.index, handle.data(), &listening); code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("listen on {}", device.label())));
  }
  net_->close_listen(listening);
  return own_handle_.emplace(handle);
}

Status Plugin::check_peer_handle(const Device& device, const Handle& handle) {
  if (!is_gpudirect(name())) return {};
  const auto own = own_handle(device);
  if (!own) return tl::unexpected(own.error());
  return check_handle(handle, *own, name());
}

Result<Device> Plugin::device(int index) const {
  auto found = devices();
  if (!found) return tl::unexpected(found.error());
  if (index < 0 || static_cast<std::size_t>(index) >= found->size()) {
    return fail(ErrorCode::kNotFound, "{} has devices 0 to {}, not {}", path_, found->size() - 1, index);
  }
  return (*found)[static_cast<std::size_t>(index)];
}

}  // namespace p2p::nccl_net
