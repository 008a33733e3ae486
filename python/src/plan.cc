// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <array>
#include <chrono>
#include <string>

namespace p2p::python {
namespace nb = nanobind;
namespace {

Local one_span(std::uint64_t mr_id, std::uint64_t address, const Amount& amount, bool by_address) {
  Local local{.spans = {}, .by_address = by_address, .strides = amount.strides};
  local.spans.resize(1)[0] = local_span(mr_id, address, amount.bytes);
  if (by_address && amount.strides) {
    const auto [lowest, size] = strided_range(address, *amount.strides);
    local.around = local_span(mr_id, lowest, size);
  }
  return local;
}

/// One span where the tensor is one run, or strided and the verb takes that; else its runs.
Local pieces_of(Verb verb, std::uint64_t mr_id, const Tensor& tensor, bool by_address) {
  const Layout& layout = tensor.layout;
  if (layout.one_run()) return one_span(mr_id, tensor.address, {tensor.bytes}, by_address);
  const bool one_sided = verb == Verb::kWrite || verb == Verb::kRead;
  const auto strides = one_sided ? layout.strides() : std::nullopt;
  if (strides) return one_span(mr_id, tensor.address, {tensor.bytes, strides}, by_address);
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

Local in_region(std::uint64_t mr_id, std::uint64_t address, const Amount& amount) {
  return one_span(mr_id, address, amount, false);
}

Local at_address(std::uint64_t address, const Amount& amount) { return one_span(0, address, amount, true); }

Local in_region(Verb verb, std::uint64_t mr_id, const Tensor& tensor) {
  return pieces_of(verb, mr_id, tensor, false);
}

Local at_address(Verb verb, const Tensor& tensor) { return pieces_of(verb, 0, tensor, true); }

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
  if (strides || theirs) {
    const LocalSpan& mine = (*local)[0];
    const RemoteSpan& their = (*remote)[0];
    const LocalStrided here{mine.region, mine.data, strides.value_or(Strides{.block = mine.size})};
    const RemoteStrided there{their.region, their.address, theirs.value_or(Strides{.block = their.size})};
    return verb == Verb::kWrite ? connection.write(std::span(&here, 1), std::span(&there, 1), options)
                                : connection.read(std::span(&here, 1), std::span(&there, 1), options);
  }
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
  plan.strides = local.strides;
  plan.theirs = local.theirs;
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

Status import_strided(const Connection& connection, BlobKind kind, const Blob& blob, const Local& local,
                      Recycled<RemoteSpan>& into) {
  if ((*local.spans).size() != 1) {
    return tl::unexpected(
        Error{ErrorCode::kInvalidArgument,
              "theirs: memory here that is more than rows of blocks has no strides to meet"});
  }
  const auto [before, size] = strided_range(0, *local.theirs);
  if (before != 0) {
    return tl::unexpected(Error{ErrorCode::kOutOfRange, "theirs: begins before what the peer described"});
  }
  const LocalSpan all{.size = size};
  return import_blobs(connection, kind, blob, {&all, 1}, into);
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
