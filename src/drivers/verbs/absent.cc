// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The whole of drivers/verbs where infiniband/verbs.h was missing at build time. Without a library there is
// no device, and so none of what is made on one.
#include "base/error.h"
#include "drivers/verbs/chain.h"
#include "drivers/verbs/completion_queue.h"
#include "drivers/verbs/device.h"
#include "drivers/verbs/library.h"
#include "drivers/verbs/memory.h"
#include "drivers/verbs/queue_pair.h"

namespace p2p::verbs {
namespace {

tl::unexpected<Error> absent() {
  return fail(ErrorCode::kUnavailable, "built without RDMA (infiniband/verbs.h of libibverbs-dev)");
}

}  // namespace

Result<const Library*> load_library() { return absent(); }

bool Gid::is_ipv4() const { return false; }
std::string Gid::text() const { return {}; }
std::string Port::name() const { return fmt::format("{}:{}", device, number); }
std::vector<Event> EventWatch::take() { return {}; }
Result<std::vector<std::string>> Device::list(const Library& /*library*/) { return absent(); }
Result<std::shared_ptr<Device>> Device::open(const Library& /*library*/, const std::string& /*name*/) {
  return absent();
}
Device::~Device() = default;
Result<Port> Device::port(unsigned /*number*/) const { return absent(); }
int Device::event_fd() const { return -1; }
void Device::fetch_events() {}
Result<std::shared_ptr<EventWatch>> Device::watch() { return absent(); }

Result<MemoryRegion> MemoryRegion::add(std::shared_ptr<Device> /*device*/, std::byte* /*data*/,
                                       std::size_t /*size*/, Remote /*remote*/) {
  return absent();
}
Result<MemoryRegion> MemoryRegion::add(std::shared_ptr<Device> /*device*/, const DmaBuffer& /*buffer*/,
                                       std::byte* /*data*/, std::size_t /*size*/, Remote /*remote*/) {
  return absent();
}
MemoryRegion::~MemoryRegion() = default;
std::uint32_t MemoryRegion::local_key() const { return 0; }
std::uint32_t MemoryRegion::remote_key() const { return 0; }

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::open(std::shared_ptr<Device> /*device*/,
                                                               unsigned /*depth*/) {
  return absent();
}
CompletionQueue::~CompletionQueue() = default;
Result<std::size_t> CompletionQueue::poll(std::span<WorkCompletion> /*completions*/) { return absent(); }
Status CompletionQueue::arm() { return absent(); }
int CompletionQueue::fd() const { return -1; }
bool CompletionQueue::take_event() { return false; }

Result<std::unique_ptr<QueuePair>> QueuePair::open(std::shared_ptr<Device> /*device*/,
                                                   CompletionQueue& /*queue*/, unsigned /*port*/,
                                                   const QueuePairLimits& /*wanted*/) {
  return absent();
}
QueuePair::~QueuePair() = default;
Status QueuePair::connect(const Path& /*path*/) { return absent(); }
Status QueuePair::stop() { return absent(); }
Status QueuePair::post_word(std::uint64_t /*id*/, std::uint32_t /*word*/) { return absent(); }
Status QueuePair::post_receive(std::uint64_t /*id*/) { return absent(); }
std::uint32_t QueuePair::number() const { return 0; }

struct Chain::Storage {};
Chain::Chain(unsigned requests, const QueuePairLimits& limits) : most_(requests), limits_(limits) {}
Chain::~Chain() = default;
bool Chain::add(Verb /*verb*/, const Extent& /*extent*/) { return false; }
bool Chain::add_probe() { return false; }
Status Chain::post(QueuePair& /*pair*/, std::uint64_t /*first_id*/) { return absent(); }

}  // namespace p2p::verbs
