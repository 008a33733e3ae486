// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

/// What becomes of the engine in a child that fork() makes. Such a child has none of the engine's threads,
/// and the locks that these held are held there for ever.
namespace p2p {

/// Remembers the process in which it was made.
class Birthplace {
 public:
  Birthplace();

  /// True in a process forked from that one. There the engine's threads do not exist, its locks may be held
  /// for ever, and its descriptors are closed: their numbers may be others' by now.
  bool left() const { return forks_so_far.load(std::memory_order_relaxed) != forks_; }

  /// Counts the fork: for the handler that runs in a child.
  static void leave() { forks_so_far.fetch_add(1, std::memory_order_relaxed); }

 private:
  /// How many forks lie between the first process and this one.
  inline static std::atomic<unsigned> forks_so_far{0};

  unsigned forks_;
};

/// Held by whatever may hold the engine's locks while another thread forks: endpoints and engine threads.
class EngineUse {
 public:
  EngineUse();
  ~EngineUse();
  EngineUse(const EngineUse&) = delete;
  EngineUse& operator=(const EngineUse&) = delete;

 private:
  Birthplace birthplace_;
};

/// True in a child that was forked while the engine was in use, and in its children: locks may be held for
/// ever.
bool forked_in_use();

/// While one lives the process does not fork: around calls that open or close a descriptor, so that the child
/// knows of each. They must not wait. A fork waits for a second at most.
class DescriptorChange {
 public:
  DescriptorChange();
  ~DescriptorChange();
  DescriptorChange(const DescriptorChange&) = delete;
  DescriptorChange& operator=(const DescriptorChange&) = delete;
};

/// Children will have `fd` closed, until `forget_descriptor`. Under a DescriptorChange that began before it
/// was opened, if the fork is not to come in between.
void keep_from_children(int fd);
void forget_descriptor(int fd);

}  // namespace p2p
