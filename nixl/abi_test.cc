// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "abi/engine.h"
#include "host.h"

namespace p2p::nixl {
namespace {

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
  }
}

/// Without what demanglers disagree about.
std::string plain(std::string text) {
  replace_all(text, "[abi:cxx11]", "");
  replace_all(text, " ", "");
  replace_all(text, "std::__cxx11::basic_string<char,std::char_traits<char>,std::allocator<char>>",
              "std::string");
  return text;
}

/// The slots of the class as the compiler laid them out: number, from 0 after the destructors, to signature.
class Slots {
 public:
  template <class Function>
  void add(const std::string& name, Function function) {
    // A pointer to a virtual member function is 1 + its offset in the table; two slots are the destructors'.
    std::size_t word = 0;
    std::memcpy(&word, &function, sizeof word);
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> type(
        abi::__cxa_demangle(typeid(Function).name(), nullptr, nullptr, &status), &std::free);
    // "RESULT (nixlBackendEngine::*)(PARAMETERS) const"
    const std::string text = type.get();
    found_[(word - 1) / sizeof(void*) - 2] =
        plain(name + text.substr(text.find("::*)") + std::strlen("::*)")));
  }

  const std::map<std::size_t, std::string>& found() const { return found_; }

 private:
  std::map<std::size_t, std::string> found_;
};

#define P2P_ADD(name) slots.add(#name, &nixlBackendEngine::name)

Slots all_slots() {
  using RemoteView = nixl_status_t (nixlBackendEngine::*)(const nixlDescList<nixlRemoteMetaDesc>&, void*&,
                                                          const nixlBackendOptionalArgs*) const;
  using LocalView = nixl_status_t (nixlBackendEngine::*)(const nixlDescList<nixlMetaDesc>&, void*&,
                                                         const nixlBackendOptionalArgs*) const;
  Slots slots;
  P2P_ADD(supportsRemote);
  P2P_ADD(supportsLocal);
  P2P_ADD(supportsNotif);
  P2P_ADD(getSupportedMems);
  P2P_ADD(registerMem);
  P2P_ADD(deregisterMem);
  P2P_ADD(connect);
  P2P_ADD(disconnect);
  P2P_ADD(unloadMD);
  P2P_ADD(prepXfer);
  P2P_ADD(postXfer);
  P2P_ADD(checkXfer);
  P2P_ADD(releaseReqH);
  slots.add("prepMemView", static_cast<RemoteView>(&nixlBackendEngine::prepMemView));
  slots.add("prepMemView", static_cast<LocalView>(&nixlBackendEngine::prepMemView));
  P2P_ADD(releaseMemView);
  P2P_ADD(getPublicData);
  P2P_ADD(getConnInfo);
  P2P_ADD(loadRemoteConnInfo);
  P2P_ADD(loadRemoteMD);
  P2P_ADD(loadLocalMD);
  P2P_ADD(getNotifs);
  P2P_ADD(genNotif);
  P2P_ADD(queryMem);
  P2P_ADD(estimateXferCost);
  return slots;
}

TEST(Abi, SlotsAreThoseOfTheList) {
  std::ifstream file(NIXL_SLOTS);
  std::vector<std::string> expected;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("#")) expected.push_back(plain(line));
  }
  ASSERT_EQ(expected.size(), 25U);
  const Slots slots = all_slots();
  ASSERT_EQ(slots.found().size(), expected.size());
  for (const auto& [number, signature] : slots.found()) {
    ASSERT_LT(number, expected.size());
    EXPECT_EQ(signature, expected[number]) << "slot " << number;
  }
}

TEST(Host, WhatIsNoNixlIsRefused) {
  int here = 0;
  EXPECT_FALSE(check_host(&here)) << "an address in no library";
  const Status own = check_host(reinterpret_cast<void*>(&plain));
  ASSERT_FALSE(own);
  EXPECT_NE(own.error().message.find("1.0 to 1.5"), std::string::npos) << own.error().message;
}

}  // namespace
}  // namespace p2p::nixl
