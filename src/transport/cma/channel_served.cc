// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel's peer asks and answers, by rings of their own beside those of words.
#include <utility>

#include "base/error.h"
#include "transport/cma/channel.h"

namespace p2p::cma {
namespace {

// Taken in one go: more than the slots of both sides.
constexpr int kRequestsATurn = 64;

}  // namespace

bool CmaChannel::take_requests() {
  int taken = 0;
  for (; taken != kRequestsATurn && !breach_; ++taken) {
    const auto read = rings_.requests().read(block_);
    if (read && !*read) break;
    const Status good = read ? take_request() : tl::unexpected(read.error());
    if (!good) breach_ = good.error();
  }
  return taken != 0;
}

Status CmaChannel::take_request() {
  if (auto of_file = files_.take(block_)) return *std::move(of_file);
  auto message = decode_copy_message(block_);
  if (!message) return tl::unexpected(std::move(message.error()));
  auto* const request = std::get_if<CopyRequest>(&*message);
  if (request == nullptr) return take_outcome(std::get<CopyOutcome>(std::move(*message)));
  if (request->last) return served_.add(std::move(*request));
  return fail(ErrorCode::kProtocol, "a cma peer asks for batch {} in parts", request->batch);
}

// One at a time: words, and this side's own batches, have their turns between.
bool CmaChannel::serve() {
  if (files_.has_answer() && !breach_) noted(files_.send_answer());
  const bool may = !lost_ && !breach_ && !answer_;
  if (const auto asked = may ? served_.take() : nullptr) {
    answer_ = CopyOutcome{asked->number, asked->status
                                             ? (slots_ ? slots_.serve(*asked, breach_) : copy(asked->batch()))
                                             : std::move(asked->status)};
    // Who is gone hears nothing.
    if (lost_) answer_.reset();
  } else if (!answer_) {
    return false;
  }
  if (answer_ && !breach_ && noted(rings_.ask(encode(*answer_), peer_.socket))) answer_.reset();
  return true;
}

}  // namespace p2p::cma
