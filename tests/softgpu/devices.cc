// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace softgpu {
namespace {

int machine_count() {
  const char* const count = std::getenv("SOFTGPU_DEVICES");
  return count != nullptr ? std::atoi(count) : 0;
}

// The machine's numbers of the visible ones.
const std::vector<int>& visible() {
  static const std::vector<int> all = [] {
    const int there = machine_count();
    std::vector<int> seen;
    if (const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES")) {
      std::istringstream words(chosen);
      for (std::string word; std::getline(words, word, ',');) {
        const int device = word.empty() ? -1 : std::atoi(word.c_str());
        if (device < 0 || device >= there) break;
        seen.push_back(device);
      }
    } else {
      for (int device = 0; device != there; ++device) seen.push_back(device);
    }
    return seen;
  }();
  return all;
}

Uuid uuid_of_number(int number) {
  Uuid uuid{'s', 'o', 'f', 't', 'g', 'p', 'u'};
  uuid.back() = static_cast<char>(1 + number);
  return uuid;
}

}  // namespace

int device_count() { return static_cast<int>(visible().size()); }

Uuid uuid_of(int device) { return uuid_of_number(visible().at(static_cast<std::size_t>(device))); }

bool is_in_this_machine(const Uuid& uuid) {
  const int number = uuid.back() - 1;
  return number >= 0 && number < machine_count() && uuid_of_number(number) == uuid;
}

std::optional<int> find_device(const Uuid& uuid) {
  for (int device = 0; device != device_count(); ++device) {
    if (uuid_of(device) == uuid) return device;
  }
  return std::nullopt;
}

}  // namespace softgpu
