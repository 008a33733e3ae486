// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <mutex>
#include <string_view>
#include <utility>

#include "failure.h"
#include "memory.h"
#include "p2p/write_log.h"
#include "parameters.h"
#include "request.h"

namespace p2p::nixl {
namespace {

// For how long an agent's end waits for peers that it sent notifications to and never reached so far.
constexpr std::chrono::milliseconds kFarewell{1000};

// For how long releasing a cancelled request waits until nothing touches its memory; mostly it is a fraction
// of a millisecond. The agent tries again later where this is not enough.
constexpr std::chrono::milliseconds kReleasePatience{10};

// What a registration may say of itself: peers may then read and not write.
constexpr std::string_view kReadOnly = "read_only";

}  // namespace

Backend::Backend(const nixlBackendInitParams& init) : nixlBackendEngine(init) {
  try {
    if (const Status started = start(init); !started) {
      write_log(LogLevel::kError,
                "NIXL backend TCPX of agent " + init.localAgent + ": " + started.error().message);
      fail_construction();
    }
  } catch (...) {
    (void)refuse_exception();
    fail_construction();
  }
}

Status Backend::start(const nixlBackendInitParams& init) {
  if (init.localAgent.size() > kMaxAgentName) {
    return failure(ErrorCode::kInvalidArgument,
                   "its name is longer than " + std::to_string(kMaxAgentName) + " bytes");
  }
  const auto options = read_options(init.customParams == nullptr ? nixl_b_params_t{} : *init.customParams);
  if (!options) return tl::unexpected(options.error());
  auto posts = read_posts(init.customParams == nullptr ? nixl_b_params_t{} : *init.customParams);
  if (!posts) return tl::unexpected(posts.error());
  posts_ = *posts;
  auto endpoint = Endpoint::create(*options);
  if (!endpoint) return tl::unexpected(endpoint.error());
  endpoint_.emplace(std::move(*endpoint));
  endpoint_->set_note(encode_note(init.localAgent));
  inbox_.emplace(*endpoint_);
  timing_ = {options->connect_timeout, options->keepalive};
  const ConnInfo info{endpoint_->address(), endpoint_->port(), endpoint_->incarnation()};
  auto blob = info.encode();
  if (!blob) return tl::unexpected(blob.error());
  conn_info_ = std::move(*blob);
  self_ = std::make_shared<Peer>(*endpoint_, init.localAgent, info, timing_);
  peers_.emplace(init.localAgent, self_);
  write_log(LogLevel::kInfo, "NIXL backend TCPX of agent " + init.localAgent + ": listening at " +
                                 info.address + " port " + std::to_string(info.port));
  return {};
}

Backend::~Backend() {
  const auto until = std::chrono::steady_clock::now() + kFarewell;
  for (const auto& [agent, peer] : peers_) peer->settle(until - std::chrono::steady_clock::now());
  for (const auto& [agent, peer] : peers_) peer->leave();
}

std::shared_ptr<Peer> Backend::find(const std::string& agent) const {
  const std::shared_lock lock(mutex_);
  const auto found = peers_.find(agent);
  return found == peers_.end() ? nullptr : found->second;
}

nixl_status_t Backend::unknown(const std::string& agent) const {
  return refuse({ErrorCode::kNotFound, "agent " + agent + " is not known to agent " + local_agent()});
}

nixl_status_t Backend::registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) try {
  out = nullptr;
  const auto memory = registered_.add(*endpoint_, mem, kind, mem.metaInfo == kReadOnly);
  if (!memory) return refuse(memory.error());
  out = *memory;
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::deregisterMem(nixlBackendMD* meta) try {
  const Status removed = registered_.remove(meta, timing_.keepalive);
  return removed ? NIXL_SUCCESS : refuse(removed.error());
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::connect(const std::string& remote_agent) try {
  const auto peer = find(remote_agent);
  if (!peer) return unknown(remote_agent);
  if (peer == self_) return NIXL_SUCCESS;  // dialled when first used: most agents never are their own peer
  const auto link = peer->link();
  return link ? NIXL_SUCCESS : refuse(link.error());
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::disconnect(const std::string& remote_agent) try {
  std::shared_ptr<Peer> peer;
  {
    const std::unique_lock lock(mutex_);
    const auto found = peers_.find(remote_agent);
    if (found != peers_.end() && found->second != self_) {
      peer = std::move(found->second);
      peers_.erase(found);
    }
  }
  if (!peer) return remote_agent == local_agent() ? NIXL_SUCCESS : unknown(remote_agent);
  peer->leave();
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::unloadMD(nixlBackendMD* input) try {
  loaded_.remove(input);
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::prepXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                                const nixlDescList<nixlMetaDesc>& remote, const std::string& remote_agent,
                                nixlBackendReqH*& handle, const nixlBackendOptionalArgs* /*options*/) const
    try {
  handle = nullptr;
  auto peer = find(remote_agent);
  if (!peer) return unknown(remote_agent);
  auto request = std::make_unique<Request>(std::move(peer));
  if (const Status prepared = request->prepare({operation, local, remote}); !prepared) {
    return refuse(prepared.error());
  }
  handle = request.release();
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::postXfer(const nixl_xfer_op_t& operation, const nixlDescList<nixlMetaDesc>& local,
                                const nixlDescList<nixlMetaDesc>& remote, const std::string& /*remote_agent*/,
                                nixlBackendReqH*& handle, const nixlBackendOptionalArgs* options) const try {
  auto* request = static_cast<Request*>(handle);
  if (request == nullptr)
    return refuse({ErrorCode::kInvalidArgument, "post a transfer that was not prepared"});
  if (request->active()) return NIXL_ERR_REPOST_ACTIVE;
  PostOptions accompanying = posts_;
  if (options != nullptr && options->hasNotif) accompanying.notification = options->notifMsg;
  if (const Status posted = request->post({operation, local, remote}, accompanying); !posted) {
    return refuse(posted.error());
  }
  return request->check();
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::checkXfer(nixlBackendReqH* handle) const try {
  if (handle == nullptr) return NIXL_ERR_INVALID_PARAM;
  return static_cast<Request*>(handle)->check_again();
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::releaseReqH(nixlBackendReqH* handle) const try {
  auto* request = static_cast<Request*>(handle);
  if (request == nullptr) return NIXL_SUCCESS;
  if (!request->release(kReleasePatience)) return NIXL_ERR_REPOST_ACTIVE;
  delete request;
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::prepMemView(const nixlDescList<nixlRemoteMetaDesc>& /*list*/, void*& /*view*/,
                                   const nixlBackendOptionalArgs* /*options*/) const {
  return NIXL_ERR_NOT_SUPPORTED;
}

nixl_status_t Backend::prepMemView(const nixlDescList<nixlMetaDesc>& /*list*/, void*& /*view*/,
                                   const nixlBackendOptionalArgs* /*options*/) const {
  return NIXL_ERR_NOT_SUPPORTED;
}

void Backend::releaseMemView(void* /*view*/) const {}

nixl_status_t Backend::getPublicData(const nixlBackendMD* meta, std::string& out) const try {
  const auto bytes = static_cast<const LocalMemory*>(meta)->descriptor().serialize();
  out.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::getConnInfo(std::string& out) const try {
  out = conn_info_;
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::loadRemoteConnInfo(const std::string& remote_agent, const std::string& info) try {
  auto decoded = ConnInfo::decode(info);
  if (!decoded) {
    return refuse({decoded.error().code, "load agent " + remote_agent + ": " + decoded.error().message});
  }
  // The agent forgets a peer without a word when a later part of its metadata is wrong.
  std::shared_ptr<Peer> forgotten;
  auto peer = std::make_shared<Peer>(*endpoint_, remote_agent, *decoded, timing_);
  {
    const std::unique_lock lock(mutex_);
    std::shared_ptr<Peer>& known = peers_[remote_agent];
    if (known && known->info() == *decoded) {
      peer = known;
    } else if (known && known == self_) {
      return refuse({ErrorCode::kInvalidArgument,
                     "load agent " + remote_agent + ": this agent has the same name, and is another one"});
    } else {
      forgotten = std::exchange(known, peer);
    }
  }
  if (forgotten) forgotten->leave();
  // Dialled now, so that the first transfer finds the connection open. Whether it works is seen then.
  if (peer != self_) (void)peer->link();
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& kind,
                                    const std::string& remote_agent, nixlBackendMD*& out) try {
  out = nullptr;
  const auto peer = find(remote_agent);
  if (!peer) return unknown(remote_agent);
  const auto descriptor = parse_public_data(input, kind);
  if (!descriptor) {
    return refuse({descriptor.error().code, "agent " + remote_agent + ": " + descriptor.error().message});
  }
  if (descriptor->incarnation != peer->info().incarnation) {
    return refuse(
        {ErrorCode::kPermissionDenied,
         "agent " + remote_agent + ": its memory is described by another process than its connection info"});
  }
  auto memory = std::make_unique<RemoteMemory>(peer, *descriptor);
  // Imported now, in the background, so that the first transfer finds it ready. Whether it works is seen
  // then.
  if (const auto link = peer->link()) (void)memory->import(*link, true);
  out = loaded_.add(std::move(memory));
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::loadLocalMD(nixlBackendMD* input, nixlBackendMD*& out) try {
  // An object of its own: agents unload it after they have deregistered the memory.
  out = loaded_.add(
      std::make_unique<RemoteMemory>(self_, static_cast<const LocalMemory*>(input)->descriptor()));
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::getNotifs(notif_list_t& out) try {
  if (!out.empty()) return NIXL_ERR_INVALID_PARAM;
  inbox_->take(out);
  return NIXL_SUCCESS;
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::genNotif(const std::string& remote_agent, const std::string& message) const try {
  const auto peer = find(remote_agent);
  if (!peer) return unknown(remote_agent);
  const Status sent = peer->notify(message);
  return sent ? NIXL_SUCCESS : refuse(sent.error());
} catch (...) {
  return refuse_exception();
}

nixl_status_t Backend::queryMem(const nixlDescList<nixlBlobDesc>& /*list*/,
                                std::vector<std::optional<nixl_b_params_t>>& /*out*/) const {
  return NIXL_ERR_NOT_SUPPORTED;
}

nixl_status_t Backend::estimateXferCost(const nixl_xfer_op_t& /*operation*/,
                                        const nixlDescList<nixlMetaDesc>& /*local*/,
                                        const nixlDescList<nixlMetaDesc>& /*remote*/,
                                        const std::string& /*remote_agent*/,
                                        nixlBackendReqH* const& /*handle*/,
                                        std::chrono::microseconds& /*duration*/,
                                        std::chrono::microseconds& /*error*/, nixl_cost_t& /*method*/,
                                        const nixlAgentOptionalArgs* /*options*/) const {
  return NIXL_ERR_NOT_SUPPORTED;
}

}  // namespace p2p::nixl
