// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "abi/types.h"

/// The class that the agent calls: the order of its virtual functions and its data are fixed by
/// NIXL 1.0 to 1.5. What an agent reads from it directly are the type, the parameters, the failure flag and
/// the agent's name.
class nixlBackendEngine {
 public:
  explicit nixlBackendEngine(const nixlBackendInitParams& init)
      : backendType_(init.type),
        customParams_(init.customParams == nullptr ? nixl_b_params_t{} : *init.customParams),
        localAgent_(init.localAgent),
        enableTelemetry_(init.enableTelemetry) {}
  nixlBackendEngine(const nixlBackendEngine&) = delete;
  nixlBackendEngine& operator=(const nixlBackendEngine&) = delete;
  virtual ~nixlBackendEngine() = default;

  virtual bool supportsRemote() const = 0;
  virtual bool supportsLocal() const = 0;
  virtual bool supportsNotif() const = 0;
  virtual nixl_mem_list_t getSupportedMems() const = 0;
  virtual nixl_status_t registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) = 0;
  virtual nixl_status_t deregisterMem(nixlBackendMD* meta) = 0;
  virtual nixl_status_t connect(const std::string& remote_agent) = 0;
  virtual nixl_status_t disconnect(const std::string& remote_agent) = 0;
  virtual nixl_status_t unloadMD(nixlBackendMD* input) = 0;
  virtual nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                                 const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                                 nixlBackendReqH*& handle, const nixlBackendOptionalArgs* options) const = 0;
  virtual nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                                 const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                                 nixlBackendReqH*& handle, const nixlBackendOptionalArgs* options) const = 0;
  virtual nixl_status_t checkXfer(nixlBackendReqH* handle) const = 0;
  virtual nixl_status_t releaseReqH(nixlBackendReqH* handle) const = 0;
  virtual nixl_status_t prepMemView(const nixlDescList<nixlRemoteMetaDesc>& list, void*& view,
                                    const nixlBackendOptionalArgs* options) const = 0;
  virtual nixl_status_t prepMemView(const nixlDescList<nixlMetaDesc>& list, void*& view,
                                    const nixlBackendOptionalArgs* options) const = 0;
  virtual void releaseMemView(void* view) const = 0;
  virtual nixl_status_t getPublicData(const nixlBackendMD* meta, std::string& out) const = 0;
  virtual nixl_status_t getConnInfo(std::string& out) const = 0;
  virtual nixl_status_t loadRemoteConnInfo(const std::string& remote_agent, const std::string& info) = 0;
  virtual nixl_status_t loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& kind,
                                     const std::string& remote_agent, nixlBackendMD*& out) = 0;
  virtual nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& out) = 0;
  virtual nixl_status_t getNotifs(notif_list_t& out) = 0;
  virtual nixl_status_t genNotif(const std::string& remote_agent, const std::string& message) const = 0;
  virtual nixl_status_t queryMem(const nixlDescList<nixlBlobDesc>& list,
                                 std::vector<std::optional<nixl_b_params_t>>& out) const = 0;
  virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t& operation,
                                         const nixlDescList<nixlMetaDesc>& local,
                                         const nixlDescList<nixlMetaDesc>& remote,
                                         const std::string& remote_agent, nixlBackendReqH* const& handle,
                                         std::chrono::microseconds& duration,
                                         std::chrono::microseconds& error, nixl_cost_t& method,
                                         const nixlAgentOptionalArgs* options) const = 0;

 protected:
  const std::string& local_agent() const { return localAgent_; }
  void fail_construction() { initErr_ = true; }

 private:
  friend struct nixlBackendEngineLayout;

  std::string backendType_;
  nixl_b_params_t customParams_;
  std::vector<std::array<std::byte, 64>> telemetryEvents_;  // never filled: no agent reads it
  std::mutex telemetryMutex_;
  bool initErr_ = false;
  const std::string localAgent_;
  [[maybe_unused]] const bool enableTelemetry_;  // agents may read it
};

struct nixlBackendEngineLayout {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  static constexpr std::size_t kMutex = sizeof(std::mutex);  // 40 bytes on x86-64, 48 on aarch64
  static_assert(sizeof(nixlBackendEngine) == 168 + kMutex && offsetof(nixlBackendEngine, backendType_) == 8 &&
                offsetof(nixlBackendEngine, customParams_) == 40 &&
                offsetof(nixlBackendEngine, telemetryEvents_) == 96 &&
                offsetof(nixlBackendEngine, telemetryMutex_) == 120 &&
                offsetof(nixlBackendEngine, initErr_) == 120 + kMutex &&
                offsetof(nixlBackendEngine, localAgent_) == 128 + kMutex &&
                offsetof(nixlBackendEngine, enableTelemetry_) == 160 + kMutex);
#pragma GCC diagnostic pop
};

/// What nixl_plugin_init answers.
struct nixlBackendPlugin {
  int api_version;
  nixlBackendEngine* (*create_engine)(const nixlBackendInitParams* init);
  void (*destroy_engine)(nixlBackendEngine* engine);
  const char* (*get_plugin_name)();
  const char* (*get_plugin_version)();
  nixl_b_params_t (*get_backend_options)();
  nixl_mem_list_t (*get_backend_mems)();
};
static_assert(sizeof(nixlBackendPlugin) == 56 && offsetof(nixlBackendPlugin, create_engine) == 8 &&
              offsetof(nixlBackendPlugin, destroy_engine) == 16 &&
              offsetof(nixlBackendPlugin, get_plugin_name) == 24 &&
              offsetof(nixlBackendPlugin, get_plugin_version) == 32 &&
              offsetof(nixlBackendPlugin, get_backend_options) == 40 &&
              offsetof(nixlBackendPlugin, get_backend_mems) == 48);

/// The number has been 1 in every release, whatever changed.
inline constexpr int kNixlPluginApiVersion = 1;
