// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/load_transports.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {
namespace {

using Entry = TransportRegistry::Entry;

/// The transports that the options list, aliases replaced by the transports' own names.
Result<std::vector<std::string>> wanted_names(const Options& options, const TransportRegistry& registry) {
  std::vector<std::string> wanted;
  wanted.reserve(options.transports.size());
  for (const std::string& alias : options.transports) {
    auto name = registry.name_of(alias);
    if (!name) return tl::unexpected(name.error());
    wanted.push_back(std::move(*name));
  }
  return wanted;
}

/// Those that the options list, in that order; then all others, unless the options forbid them.
Result<std::vector<const Entry*>> choose(const Options& options, const TransportRegistry& registry) {
  const auto wanted = wanted_names(options, registry);
  if (!wanted) return tl::unexpected(wanted.error());
  std::vector<const Entry*> chosen;
  std::string known;
  for (const Entry& entry : registry.entries) known += (known.empty() ? "" : ", ") + entry.name;
  for (const std::string& name : *wanted) {
    const auto found = std::ranges::find(registry.entries, name, &Entry::name);
    if (found == registry.entries.end()) {
      return fail(ErrorCode::kInvalidArgument, "use transport '{}': there is none of that name ({})", name,
                  known);
    }
    chosen.push_back(&*found);
  }
  for (const Entry& entry : registry.entries) {
    if (std::ranges::find(*wanted, entry.name) != wanted->end()) continue;
    if (wanted->empty() || !options.require_transport) chosen.push_back(&entry);
  }
  return chosen;
}

/// Sends data over a network without encrypting it.
bool in_clear(const Capabilities& capabilities) {
  return capabilities.reach == Reach::kNetwork && !capabilities.encrypts;
}

TransportSlot load(const Entry& entry, const Options& options,
                   const std::shared_ptr<device::Service>& devices) {
  TransportSlot slot{entry.make(options, devices)};
  if (options.network_only && slot.transport->capabilities().reach != Reach::kNetwork) {
    slot.unusable = "left out: only transports that reach other hosts are wanted";
  } else if (options.tls == Encryption::kRequire && in_clear(slot.transport->capabilities())) {
    slot.unusable = "it cannot encrypt, which UCCL_P2P_TLS=require asks for";
  } else if (Status usable = slot.transport->probe(); !usable) {
    slot.unusable = usable.error().message;
  }
  log(LogLevel::kDebug, "transport {}: {}", entry.name, slot.unusable.value_or("usable"));
  return slot;
}

Status find_required(std::string& required, const TransportRegistry& registry, const TransportList& list) {
  if (required.empty()) return {};
  auto name = registry.name_of(required);
  if (!name) return tl::unexpected(std::move(name.error()));
  required = std::move(*name);
  if (std::ranges::any_of(list, [&](const auto& slot) { return slot.transport->name() == required; }))
    return {};
  return fail(ErrorCode::kInvalidArgument,
              "require transport '{}': it is not among the transports that the options allow", required);
}

Status check_usable(const TransportList& list, const Options& options) {
  if (std::ranges::any_of(list, [](const TransportSlot& slot) { return !slot.unusable; })) return {};
  std::string why;
  for (const TransportSlot& slot : list) {
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", slot.transport->name(), *slot.unusable);
  }
  return fail(ErrorCode::kUnavailable, "make an endpoint: no transport can be used here ({}){}", why,
              options.transports.empty() ? "" : "; without UCCL_P2P_TRANSPORT any that works is taken");
}

}  // namespace

Result<TransportList> load_transports(Options& options, const TransportRegistry& registry,
                                      const std::shared_ptr<device::Service>& devices) {
  const auto chosen = choose(options, registry);
  if (!chosen) return tl::unexpected(chosen.error());
  TransportList list;
  list.reserve(chosen->size());
  for (const Entry* entry : *chosen) list.push_back(load(*entry, options, devices));
  if (Status found = find_required(options.required, registry, list); !found) {
    return tl::unexpected(found.error());
  }
  if (Status usable = check_usable(list, options); !usable) return tl::unexpected(usable.error());
  return list;
}

}  // namespace p2p::engine
