// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "abi/engine.h"
#include "inbox.h"
#include "memory.h"
#include "p2p/endpoint.h"
#include "peer.h"

namespace p2p::nixl {

/// The backend of one agent: an endpoint, the agents that it knows, and NIXL's calls on them. The engine's
/// own threads move bytes and notifications, so neither side has to call for the other to go on. Every call
/// may come from any thread in every mode of the agent, as long as one request is used by one thread at a
/// time; whether the agent's own tables have a lock is the mode's affair.
class Backend final : public nixlBackendEngine {
 public:
  explicit Backend(const nixlBackendInitParams& init);
  ~Backend() override;

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return true; }
  nixl_mem_list_t getSupportedMems() const override { return {DRAM_SEG, VRAM_SEG}; }

  nixl_status_t registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) override;
  nixl_status_t deregisterMem(nixlBackendMD* meta) override;
  nixl_status_t connect(const std::string& remote_agent) override;
  nixl_status_t disconnect(const std::string& remote_agent) override;
  nixl_status_t unloadMD(nixlBackendMD* input) override;

  nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                         const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                         nixlBackendReqH*& handle, const nixlBackendOptionalArgs* options) const override;
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                         const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                         nixlBackendReqH*& handle, const nixlBackendOptionalArgs* options) const override;
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override;
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override;

  nixl_status_t prepMemView(const nixlDescList<nixlRemoteMetaDesc>& list, void*& view,
                            const nixlBackendOptionalArgs* options) const override;
  nixl_status_t prepMemView(const nixlDescList<nixlMetaDesc>& list, void*& view,
                            const nixlBackendOptionalArgs* options) const override;
  void releaseMemView(void* view) const override;

  nixl_status_t getPublicData(const nixlBackendMD* meta, std::string& out) const override;
  nixl_status_t getConnInfo(std::string& out) const override;
  nixl_status_t loadRemoteConnInfo(const std::string& remote_agent, const std::string& info) override;
  nixl_status_t loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& kind,
                             const std::string& remote_agent, nixlBackendMD*& out) override;
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& out) override;
  nixl_status_t getNotifs(notif_list_t& out) override;
  nixl_status_t genNotif(const std::string& remote_agent, const std::string& message) const override;

  nixl_status_t queryMem(const nixlDescList<nixlBlobDesc>& list,
                         std::vector<std::optional<nixl_b_params_t>>& out) const override;
  nixl_status_t estimateXferCost(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                                 const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                                 nixlBackendReqH* const& handle, std::chrono::microseconds& duration,
                                 std::chrono::microseconds& error, nixl_cost_t& method,
                                 const nixlAgentOptionalArgs* options) const override;

 private:
  Status start(const nixlBackendInitParams& init);
  std::shared_ptr<Peer> find(const std::string& agent) const;
  nixl_status_t unknown(const std::string& agent) const;

  Registrations registered_;  // ends after the endpoint: nothing touches the memory then
  LoadedMemory loaded_;
  std::optional<Endpoint> endpoint_;
  std::optional<Inbox> inbox_;
  std::string conn_info_;
  Peer::Timing timing_;
  PostOptions posts_;  // how transfers are posted
  std::shared_ptr<Peer> self_;

  mutable std::shared_mutex mutex_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;  // self_ included
};

}  // namespace p2p::nixl
