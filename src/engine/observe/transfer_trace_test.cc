// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/transfer_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/observe/trace.h"

namespace p2p::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TransferTrace, NotesATransferFromItsSubmissionToItsEnd) {
  const std::string path = ::testing::TempDir() + "/p2p_transfer_trace_test." + std::to_string(::getpid());
  Options options;
  options.trace = path;
  {
    TransferTrace trace(Trace::of_process(options),
                        {.operation = Operation::kWrite, .bytes = 300, .application = 9});
    const int runner = 0;
    const TransferTrace::Way way{&runner, "tcp", "eth0"};
    const auto now = std::chrono::steady_clock::now();
    trace.item_sent(way, {.id = BatchId{1}, .bytes = 100}, now);
    trace.item_sent(way, {.id = BatchId{2}, .bytes = 200}, now);
    trace.item_ended(way, BatchId{1}, {});
    trace.item_ended(way, BatchId{2}, fail(ErrorCode::kPeerGone, "as the test asked"));
    trace.ended(fail(ErrorCode::kPeerGone, "as the test asked"));
  }
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"cat\"") != std::string::npos) lines.push_back(line);
  }
  std::filesystem::remove(path);
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(R"("ph":"b","name":"write")"), HasSubstr(R"("id":9)")),
                                 HasSubstr(R"("name":"started")"),  // once, with the first item
                                 AllOf(HasSubstr(R"("ph":"b","name":"piece")"), HasSubstr(R"("bytes":100)")),
                                 AllOf(HasSubstr(R"("ph":"b","name":"piece")"), HasSubstr(R"("bytes":200)")),
                                 AllOf(HasSubstr(R"("ph":"e","name":"piece")"), HasSubstr("\"ok\"")),
                                 AllOf(HasSubstr(R"("ph":"e","name":"piece")"), HasSubstr("\"peer_gone\"")),
                                 AllOf(HasSubstr(R"("ph":"e","name":"write")"), HasSubstr("\"peer_gone\""))));
}

}  // namespace
}  // namespace p2p::engine
