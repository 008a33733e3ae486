// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/shared_by_name.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>

#include "base/error.h"

namespace p2p {
namespace {

using Shared = SharedByName<int>;
Result<std::shared_ptr<int>> make() { return std::make_shared<int>(0); }

TEST(SharedByName, OneForANameWhileAnybodyHoldsIt) {
  Shared all;
  const auto refuse = []() -> Result<std::shared_ptr<int>> { return fail(ErrorCode::kUnavailable, "none"); };
  EXPECT_FALSE(all.get("a", refuse));
  auto first = all.get("a", make).value();
  EXPECT_EQ(all.get("a", refuse).value(), first);
  EXPECT_NE(all.get("b", make).value(), first);
  first.reset();
  EXPECT_FALSE(all.get("a", refuse)) << "nobody holds it any more";
}

TEST(SharedByName, OneThatIsBeingDestroyedIsWaitedFor) {
  struct Slow;
  struct Table {
    SharedByName<Slow> all;
    std::future<std::shared_ptr<Slow>> next;
  };
  struct Slow {
    explicit Slow(Table& of) : table(of) {}
    ~Slow() {
      if (table.next.valid()) return;
      table.next = std::async(std::launch::async, [all = &table] {
        return all->all.get("a", [all] { return make(*all); }).value();
      });
      EXPECT_EQ(table.next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
          << "another one was made meanwhile";
    }
    static Result<std::shared_ptr<Slow>> make(Table& of) { return std::make_shared<Slow>(of); }
    Table& table;
  };
  Table table;
  table.all.get("a", [&] { return Slow::make(table); }).value().reset();
  ASSERT_EQ(table.next.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(table.next.get(), nullptr);
}

}  // namespace
}  // namespace p2p
