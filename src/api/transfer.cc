// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/transfer.h"

#include <utility>

#include "engine/request/transfer.h"
#include "engine/transfer/prepared_list.h"

namespace p2p {

Transfer::Transfer(std::shared_ptr<engine::TransferState> state) : state_(std::move(state)) {}
bool Transfer::done() const { return state_->done(); }
Status Transfer::wait(std::chrono::nanoseconds timeout) const { return state_->wait(timeout); }
Status Transfer::status() const { return state_->status(); }
void Transfer::cancel() const { state_->cancel(); }
std::uint64_t Transfer::bytes() const { return state_->bytes(); }
void Transfer::on_done(std::function<void()> callback) const { state_->on_done(std::move(callback)); }

PreparedTransfer::PreparedTransfer(std::shared_ptr<engine::PreparedList> list) : list_(std::move(list)) {}
Transfer PreparedTransfer::post(const PostOptions& options) const { return Transfer(list_->post(options)); }
std::uint64_t PreparedTransfer::bytes() const { return list_->bytes(); }
std::size_t PreparedTransfer::segments() const { return list_->segments(); }

}  // namespace p2p
