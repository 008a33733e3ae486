// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <set>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::topology {

using Cpus = std::set<unsigned>;

/// CPUs have numbers below this: as many as Linux can be built for.
inline constexpr unsigned kMostCpus = 8192;

/// A list as the kernel writes it: "0-3,8,10-11", with or without a line end; nothing for none.
Result<Cpus> parse_cpus(std::string_view text);

/// The CPUs next to a PCI device ("0000:3b:00.0"); all of them where the machine has one NUMA node. The error
/// if the kernel does not say, as in many containers and virtual machines.
Result<Cpus> cpus_near(const std::string& pci_address, const std::string& sysfs_root = "/sys");

/// The NUMA node of a PCI device; -1 if it has none or the kernel does not say.
int numa_node_of(const std::string& pci_address, const std::string& sysfs_root = "/sys");

/// The CPUs on which a thread may run now: what taskset, cgroups and the program left it.
Result<Cpus> cpus_of(pthread_t thread);

/// Keeps a thread on those of `cpus` that are among `allowed`, and leaves it alone if there are none or it is
/// there already. A failure is logged; the thread then runs where it ran.
void keep_on(pthread_t thread, const Cpus& cpus, const Cpus& allowed);

}  // namespace p2p::topology
