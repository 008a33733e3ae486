// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <array>
#include <chrono>
#include <string>

namespace p2p::python {
namespace nb = nanobind;
namespace {

Local one_span(std::uint64_t mr_id, std::uint64_t address, std::size_t size, bool by_address) {
  Local local{.spans = {}, .by_address = by_address};
  local.spans.resize(1)[0] = local_span(mr_id, address, size);
  return local;
}

/// Runs become spans; a tensor of one run is one span.
Local runs_of(std::uint64_t mr_id, const Tensor& tensor, bool by_address) {
  const Layout& layout = tensor.layout;
  if (layout.one_run()) return one_span(mr_id, tensor.address, tensor.bytes, by_address);
  Local local{.spans = {}, .by_address = by_address};
  if (by_address) {
    const auto [lowest, size] = tensor.range();
    local.around = local_span(mr_id, lowest, size);
  }
  const std::span<LocalSpan> spans = local.spans.resize(layout.runs());
  std::size_t i = 0;
  layout.for_each_run(tensor.address,
                      [&](std::uint64_t address) { spans[i++] = local_span(mr_id, address, layout.run()); });
  return local;
}

/// Where the peer has connected to this side as well and nobody has accepted that, it sends on what it made:
/// that is where to receive. A send tells as well which two belong together.
bool cross(Plan& plan) {
  if (plan.verb != Verb::kReceive && plan.verb != Verb::kSend) return false;
  auto theirs = plan.state->connections.crossing(plan.state->engine, *plan.link);
  if (theirs == nullptr || plan.verb == Verb::kSend) return false;
  plan.link = std::move(theirs);
  return true;
}

/// Waits for a message. The peer may connect to this side only after that has begun.
Status receive(Plan& plan, const How& how) {
  for (;;) {
    Transfer transfer;
    {
      Released released;
      transfer = plan.post(how);
      (void)transfer.wait(kSlice);
    }
    bool moved = false;
    while (!transfer.done()) {
      const Status outcome = wait_done(transfer, std::chrono::steady_clock::now() + kSlice,
                                       plan.state->closing, OnInterrupt::kCancel);
      if (transfer.done()) break;
      if (outcome.error().code != ErrorCode::kTimedOut) return outcome;
      moved = cross(plan);
      if (moved) transfer.cancel();
    }
    const Status outcome = transfer.status();
    const bool nothing_came = !outcome && outcome.error().code == ErrorCode::kCancelled;
    if (!moved || !nothing_came) return outcome;
  }
}

TransferTable::Kind kind_of(Verb verb) {
  if (verb == Verb::kSend) return TransferTable::Kind::kSend;
  return verb == Verb::kReceive ? TransferTable::Kind::kReceive : TransferTable::Kind::kOneSided;
}

}  // namespace

Local in_region(std::uint64_t mr_id, std::uint64_t address, std::size_t size) {
  return one_span(mr_id, address, size, false);
}

Local at_address(std::uint64_t address, std::size_t size) { return one_span(0, address, size, true); }

Local in_region(std::uint64_t mr_id, const Tensor& tensor) { return runs_of(mr_id, tensor, false); }

Local at_address(const Tensor& tensor) { return runs_of(0, tensor, true); }

Local in_regions(const Numbers& ids, const Numbers& addresses, const Numbers& sizes,
                 std::optional<std::size_t> num_iovs) {
  const auto count = value_or_raise(same_length({ids.size(), addresses.size(), sizes.size()}, num_iovs));
  Local local;
  const std::span<LocalSpan> spans = local.spans.resize(count);
  std::array<Numbers::Step, 3> steps;
  for_each_step(count, [&](std::size_t first, std::size_t few) {
    const auto id = ids.step(first, few, steps[0]);
    const auto address = addresses.step(first, few, steps[1]);
    const auto size = sizes.step(first, few, steps[2]);
    for (std::size_t i = 0; i < few; ++i) spans[first + i] = local_span(id[i], address[i], size[i]);
  });
  return local;
}

Local at_addresses(const Numbers& addresses, const Numbers& sizes) {
  const auto count = value_or_raise(same_length({addresses.size(), sizes.size()}, std::nullopt));
  Local local{.spans = {}, .by_address = true};
  const std::span<LocalSpan> spans = local.spans.resize(count);
  std::array<Numbers::Step, 2> steps;
  for_each_step(count, [&](std::size_t first, std::size_t few) {
    const auto address = addresses.step(first, few, steps[0]);
    const auto size = sizes.step(first, few, steps[1]);
    for (std::size_t i = 0; i < few; ++i) spans[first + i] = local_span(0, address[i], size[i]);
  });
  return local;
}

Priority priority_of(std::string_view name) {
  if (name == "high") return Priority::kHigh;
  if (name == "normal") return Priority::kNormal;
  if (name == "low") return Priority::kLow;
  const std::string text = "priority: '" + std::string(name) + "' is none of 'high', 'normal' and 'low'";
  throw nb::value_error(text.c_str());
}

Transfer Plan::post(const How& how, std::uint64_t id) const {
  const Connection& connection = link->connection;
  const PostOptions options{.cuda_stream = how.stream.handle(),
                            .trace_id = id,
                            .priority = how.priority,
                            .rate = how.rate,
                            .verify = how.verify};
  switch (verb) {
    case Verb::kWrite: return connection.write(*local, *remote, options);
    case Verb::kRead: return connection.read(*local, *remote, options);
    case Verb::kSend: return connection.send(*local);
    case Verb::kReceive: return connection.recv(*local);
  }
  return {};
}

Result<Plan> open_plan(const PyEndpoint& self, Verb verb, std::uint64_t conn_id) {
  Plan plan{
      .verb = verb, .state = self.state_or_raise(), .link = nullptr, .local = {}, .remote = {}, .held = {}};
  auto link = find_link(*plan.state, conn_id);
  if (!link) return tl::unexpected(std::move(link.error()));
  plan.link = std::move(*link);
  return plan;
}

Result<Plan> with_memory(Plan plan, Local local) {
  const MemoryTable& memory = plan.state->memory;
  plan.local = std::move(local.spans);
  if (local.by_address) {
    // A tensor's runs take one registration, not one each.
    auto held = plan.state->engine.cover(local.around ? std::span(&*local.around, 1) : *plan.local);
    if (!held) return tl::unexpected(std::move(held.error()));
    if (local.around) {
      for (LocalSpan& span : *plan.local) span.region = local.around->region;
    }
    plan.held = std::move(*held);
  } else if (plan.verb == Verb::kSend || plan.verb == Verb::kReceive) {
    if (plan.verb == Verb::kReceive) memory.clip(*plan.local);
    if (Status good = memory.check(*plan.local); !good) return tl::unexpected(std::move(good.error()));
  }
  return plan;
}

bool finish(Result<Plan> plan, const How& how) {
  if (!plan) return succeeded(tl::unexpected(std::move(plan.error())));
  cross(*plan);
  if (plan->verb == Verb::kReceive && plan->link->origin == Link::Origin::kDialled) {
    return succeeded(receive(*plan, how));
  }
  return succeeded(run(*plan->state, [&] { return plan->post(how); }));
}

OkAndId begin(Result<Plan> plan, const How& how) {
  if (!plan) return not_started(plan.error());
  if (plan->verb == Verb::kReceive) plan->state->connections.await_crossing(plan->state->engine, *plan->link);
  cross(*plan);  // for good
  return start(*plan->state, kind_of(plan->verb), [&](std::uint64_t id) { return plan->post(how, id); });
}

}  // namespace p2p::python
