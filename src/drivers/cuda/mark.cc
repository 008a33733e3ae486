// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/mark.h"

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/driver.h"
#include "drivers/cuda/error.h"

namespace p2p::cuda {
namespace {

// The runtime has the driver's numbers, and a text for each.
Status check_driver(CUresult code, std::string_view what) {
  if (code == CUDA_SUCCESS) return {};
  return tl::unexpected<Error>(error_of(static_cast<int>(code), what));
}

/// DeviceGuard for a context: the stream's, which need not be a device's primary one.
class ContextGuard {
 public:
  ContextGuard(const Driver& driver, CUcontext context) : driver_(driver) {
    mode_changed_ = driver.exchange_capture_mode(&mode_) == CUDA_SUCCESS;
    if (driver.get_current(&previous_) != CUDA_SUCCESS) previous_ = nullptr;
    if (previous_ == context) return;
    status_ = check_driver(driver.set_current(context), "make the context of a CUDA stream current");
    restore_ = status_.has_value();
  }
  ~ContextGuard() {
    if (restore_) driver_.set_current(previous_);
    if (mode_changed_) driver_.exchange_capture_mode(&mode_);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUcontext previous_ = nullptr;
  bool mode_changed_ = false;
  bool restore_ = false;
  Status status_;
};

// The handles that stand for a default stream have no context of their own.
Result<CUcontext> context_of(const Driver& driver, CUstream stream) {
  CUcontext context = nullptr;
  Status found;
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    const DeviceGuard guard(kAnyDevice);
    found = guard.status();
    if (found) found = check_driver(driver.get_current(&context), "ask for the current CUDA context");
  } else {
    found = check_driver(driver.stream_context(stream, &context),
                         fmt::format("ask for the context of CUDA stream {}", fmt::ptr(stream)));
  }
  if (!found) return tl::unexpected<Error>(found.error());
  return context;
}

}  // namespace

Result<StreamMark> StreamMark::set(void* handle) {
  auto* const stream = static_cast<CUstream>(handle);
  const auto loaded = load_driver();
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  const Driver& driver = **loaded;
  const auto context = context_of(driver, stream);
  if (!context) return tl::unexpected<Error>(context.error());
  const ContextGuard guard(driver, *context);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());

  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  Status status = check_driver(driver.is_capturing(stream, &capture),
                               fmt::format("ask whether CUDA stream {} is captured", handle));
  if (!status) return tl::unexpected<Error>(status.error());
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return fail(ErrorCode::kInvalidArgument,
                "wait for CUDA stream {}: its work is being captured and will not run by itself", handle);
  }
  CUevent event = nullptr;
  status = check_driver(driver.make_event(&event, CU_EVENT_DISABLE_TIMING), "make a CUDA event");
  if (!status) return tl::unexpected<Error>(status.error());
  StreamMark mark(event, *context);
  status = check_driver(driver.record_event(event, stream),
                        fmt::format("record an event on CUDA stream {}", handle));
  if (!status) return tl::unexpected<Error>(status.error());
  return mark;
}

StreamMark::~StreamMark() {
  if (event_ == nullptr) return;
  const ContextGuard guard(*loaded_driver(), static_cast<CUcontext>(context_));
  if (guard.status()) loaded_driver()->destroy_event(static_cast<CUevent>(event_));
}

Result<bool> StreamMark::passed() const {
  const ContextGuard guard(*loaded_driver(), static_cast<CUcontext>(context_));
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  const CUresult code = loaded_driver()->query_event(static_cast<CUevent>(event_));
  if (code == CUDA_SUCCESS) return true;
  if (code == CUDA_ERROR_NOT_READY) return false;
  return tl::unexpected<Error>(check_driver(code, "the work of the transfer's CUDA stream").error());
}

}  // namespace p2p::cuda
