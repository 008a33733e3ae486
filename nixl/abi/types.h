// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/// The values that cross between a NIXL agent and its backends: the binary interface of NIXL 1.0 to 1.5,
/// written down from what its programs do. Names are NIXL's own, in the global namespace, because the names
/// of types are part of the slot list that the tests compare (slots.txt). Sizes and offsets are what the
/// outside fixes.

enum nixl_status_t : int {
  NIXL_IN_PROG = 1,
  NIXL_SUCCESS = 0,
  NIXL_ERR_NOT_POSTED = -1,
  NIXL_ERR_INVALID_PARAM = -2,
  NIXL_ERR_BACKEND = -3,
  NIXL_ERR_NOT_FOUND = -4,
  NIXL_ERR_MISMATCH = -5,
  NIXL_ERR_NOT_ALLOWED = -6,
  NIXL_ERR_REPOST_ACTIVE = -7,
  NIXL_ERR_UNKNOWN = -8,
  NIXL_ERR_NOT_SUPPORTED = -9,
  NIXL_ERR_REMOTE_DISCONNECT = -10,
  NIXL_ERR_CANCELED = -11,
};

enum nixl_mem_t : int { DRAM_SEG = 0, VRAM_SEG = 1, BLK_SEG = 2, OBJ_SEG = 3, FILE_SEG = 4 };

enum nixl_xfer_op_t : int { NIXL_READ = 0, NIXL_WRITE = 1 };

enum nixl_cost_t : int { NIXL_COST_ANALYTICAL_BACKEND = 0 };

using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;  // agent name, bytes

/// What a backend keeps for a registration, or for a piece of a peer's memory. The agent only hands it back.
class nixlBackendMD {
 public:
  virtual ~nixlBackendMD() = default;
};

/// What a backend keeps for a transfer request.
class nixlBackendReqH {
 public:
  virtual ~nixlBackendReqH() = default;
};

/// A range of memory and what the backend gave for it.
struct nixlMetaDesc {
  std::uintptr_t addr;
  std::size_t len;  ///< bytes
  std::uint64_t devId;
  nixlBackendMD* metadataP;
};
static_assert(sizeof(nixlMetaDesc) == 32 && offsetof(nixlMetaDesc, len) == 8 &&
              offsetof(nixlMetaDesc, devId) == 16 && offsetof(nixlMetaDesc, metadataP) == 24);

/// A range of memory and text: the user's at registration, the owner's public data when it comes from a peer.
struct nixlBlobDesc {
  std::uintptr_t addr;
  std::size_t len;
  std::uint64_t devId;
  std::string metaInfo;
};
static_assert(sizeof(nixlBlobDesc) == 56 && offsetof(nixlBlobDesc, metaInfo) == 24);

/// Lists are made by the agent and only read here.
template <class T>
struct nixlDescList {
  const void* vtable;  ///< of the agent's class; nothing here calls through it
  nixl_mem_t type;
  std::vector<T> descs;
};
static_assert(sizeof(nixlDescList<nixlMetaDesc>) == 40 && offsetof(nixlDescList<nixlMetaDesc>, type) == 8 &&
              offsetof(nixlDescList<nixlMetaDesc>, descs) == 16);

/// Only named in slots that this backend does not implement.
struct nixlRemoteMetaDesc;
struct nixlAgentOptionalArgs;

/// What comes with prepXfer and postXfer.
struct nixlBackendOptionalArgs {
  std::string notifMsg;
  bool hasNotif;
  std::string customParam;
};
static_assert(sizeof(nixlBackendOptionalArgs) == 72 && offsetof(nixlBackendOptionalArgs, hasNotif) == 32 &&
              offsetof(nixlBackendOptionalArgs, customParam) == 40);

/// What a backend is made with. Newer hosts may append members: never copy it.
struct nixlBackendInitParams {
  nixlBackendInitParams() = default;
  nixlBackendInitParams(const nixlBackendInitParams&) = delete;
  nixlBackendInitParams& operator=(const nixlBackendInitParams&) = delete;

  std::string localAgent;
  std::string type;
  const nixl_b_params_t* customParams = nullptr;
  bool enableProgTh = false;
  std::uint64_t pthrDelay = 0;  ///< microseconds
  int syncMode = 0;
  bool enableTelemetry = false;
};
static_assert(sizeof(nixlBackendInitParams) == 96 && offsetof(nixlBackendInitParams, type) == 32 &&
              offsetof(nixlBackendInitParams, customParams) == 64 &&
              offsetof(nixlBackendInitParams, enableProgTh) == 72 &&
              offsetof(nixlBackendInitParams, pthrDelay) == 80 &&
              offsetof(nixlBackendInitParams, syncMode) == 88 &&
              offsetof(nixlBackendInitParams, enableTelemetry) == 92);
