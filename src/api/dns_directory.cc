// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>
#include <vector>

#include "api/directory_drivers.h"
#include "base/error.h"
#include "drivers/socket/dial.h"
#include "p2p/host_port.h"

namespace p2p::directories {
namespace {

using Addresses = Result<std::vector<socket::Address>>;

constexpr std::chrono::seconds kDnsPatience{3};

/// The names that a cluster's DNS gives the pods of a headless service. Who is listed is the cluster's
/// affair: what is published only has to be at the service's port.
class DnsDirectory : public Driver {
 public:
  DnsDirectory(std::string service, std::uint16_t port) : service_(std::move(service)), port_(port) {}

  Status put(const DirectoryEntry& entry) override {
    if (entry.port == port_) return {};
    return fail(ErrorCode::kInvalidArgument,
                "publish \"{}\": it listens at port {}, and those of {} at {}: set UCCL_P2P_PORT={}",
                entry.name, entry.port, service_, port_, port_);
  }

  Status remove(const std::string& /*name*/) override { return {}; }

  Result<std::optional<DirectoryEntry>> get(const std::string& name) override {
    const auto found = addresses(name + "." + service_);
    if (!found) return tl::unexpected(found.error());
    if (found->empty()) return std::nullopt;
    return DirectoryEntry{name, found->front().text(), port_};
  }

  /// By addresses: DNS does not say the names of a service's pods.
  Result<Entries> all() override {
    const auto found = addresses(service_);
    if (!found) return tl::unexpected(found.error());
    Entries entries;
    for (const socket::Address& address : *found)
      entries[address.text()] = {address.text(), address.text(), port_};
    return entries;
  }

 private:
  /// None for a name that there is not.
  Addresses addresses(const std::string& host) const {
    auto found = socket::addresses_of(host, port_, std::chrono::steady_clock::now() + kDnsPatience);
    if (!found && found.error().code == ErrorCode::kNotFound) return std::vector<socket::Address>();
    return found;
  }

  const std::string service_;
  const std::uint16_t port_;
};

}  // namespace

Result<std::unique_ptr<Driver>> in_dns(const std::string& where) {
  auto service = HostPort::parse(where);
  if (!service || service->port.value_or(0) == 0) {
    return fail(ErrorCode::kInvalidArgument, "use the directory k8s://{}: it is no service:port", where);
  }
  return std::make_unique<DnsDirectory>(std::move(service->host), *service->port);
}

}  // namespace p2p::directories
