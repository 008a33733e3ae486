// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/callback.h"

#include <cxxabi.h>

#include <exception>

#include "base/log.h"
#include "base/thread.h"

namespace p2p {
namespace {

thread_local int callbacks_under_way = 0;

struct UnderWay {
  UnderWay() { ++callbacks_under_way; }
  ~UnderWay() { --callbacks_under_way; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
};

}  // namespace

void run_callback(const std::function<void()>& callback) {
  const UnderWay under_way;
  try {
    callback();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "a callback of the application threw an exception, which is ignored: {}",
        error.what());
  } catch (const abi::__forced_unwind&) {  // the thread ends
    throw;
  } catch (...) {
    log(LogLevel::kError, "a callback of the application threw what is no std::exception, which is ignored");
  }
}

bool in_callback() { return callbacks_under_way != 0 || on_engine_thread(); }

}  // namespace p2p
