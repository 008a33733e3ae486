// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "long_link.h"

#include <fmt/format.h>
#include <unistd.h>

#include "bounds.h"

namespace p2p::testing {

std::string LongLink::missing() {
  if (::geteuid() != 0) return "network namespaces need root";
  if (::access("/dev/net/tun", R_OK | W_OK) != 0) return "there is no /dev/net/tun";
  return "";
}

LongLink::LongLink(std::uint64_t seed, const std::string& profile) : Hosts("long") {
  if (made_) start(seed, profile);
  for (const bool left : {true, false}) {
    const std::string& host = left ? left_ : right_;
    must({"ip", "-n", host, "addr", "add", left ? kLeftAddress : kRightAddress, "peer",
          left ? kRightAddress : kLeftAddress, "dev", "long"});
    // So that the link's own queue is the one that overflows.
    must({"ip", "-n", host, "link", "set", "long", "up", "txqueuelen", "10000"});
  }
}

void LongLink::start(std::uint64_t seed, const std::string& profile) {
  auto process = Process::spawn({P2P_LONG_LINK_PROGRAM, left_, right_, fmt::format("{}", seed), profile});
  if (!process) {
    made_ = tl::unexpected(process.error());
    return;
  }
  link_.emplace(std::move(*process));
  if (const auto said = link_->read_line(kLimit); !said) made_ = tl::unexpected(said.error());
}

// By the route: a namespace may not choose from all that the kernel has.
Status LongLink::set_congestion_control(const std::string& name) {
  must({"ip", "-n", left_, "route", "replace", kRightAddress, "dev", "long", "src", kLeftAddress, "congctl",
        name});
  must({"ip", "-n", right_, "route", "replace", kLeftAddress, "dev", "long", "src", kRightAddress, "congctl",
        name});
  return made_;
}

Status LongLink::bound_receive_buffers(std::uint64_t most) {
  for (const std::string& host : {left_, right_}) {
    must({"ip", "netns", "exec", host, "sysctl", "-q", fmt::format("net.ipv4.tcp_rmem=4096 65536 {}", most)});
  }
  return made_;
}

Result<std::string> LongLink::change(const std::string& profile) {
  if (const Status told = link_->write_line(profile); !told) return tl::unexpected(told.error());
  auto said = link_->read_line(kLimit);
  if (said && said->starts_with("error ")) {
    return tl::unexpected(Error{ErrorCode::kInvalidArgument, *said});
  }
  return said;
}

}  // namespace p2p::testing
