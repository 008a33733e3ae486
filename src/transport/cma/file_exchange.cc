// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/file_exchange.h"

#include <array>
#include <chrono>
#include <span>

#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/safe_copy.h"
#include "drivers/socket/local_socket.h"

namespace p2p::cma {
namespace {

std::shared_ptr<PeerMapping> mapping_of(const RemoteKey& key) {
  const auto* const region = dynamic_cast<const PeerRegion*>(&key);
  return region == nullptr ? nullptr : region->mapping();
}

}  // namespace

bool FileExchange::maps(const Batch& batch) {
  const RemoteKey* last = nullptr;
  bool all = true;
  batch.for_each_piece([&](const Segment& piece) {
    if (piece.key == last) return;
    last = piece.key;
    const auto mapping = mapping_of(*last);
    if (mapping && mapping->at(piece.remote) != nullptr) return;
    all = false;
    if (mapping && !question_) ask_for(mapping);
  });
  return all;
}

void FileExchange::ask_for(const std::shared_ptr<PeerMapping>& mapping) {
  if (!mapping->begin_asking()) return;
  FileQuestion question(mapping);
  // Without room it is asked for another time; the channel finds out by itself what else is wrong.
  const auto asked = rings_.ask(question.encode(), socket_);
  if (!asked || !*asked) return;
  rings_.expect_descriptor();
  question_.emplace(std::move(question));
}

// A fault on either side ends the copy; it is the memory here that the program may have unmapped.
Status FileExchange::copy(const Batch& batch, std::byte* staged) {
  const bool write = batch.operation == Operation::kWrite;
  const RemoteKey* last = nullptr;
  std::shared_ptr<PeerMapping> mapping;
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    if (piece.key != last) mapping = mapping_of(*(last = piece.key));
    std::byte* const here = staged == nullptr ? piece.local : std::exchange(staged, staged + piece.size);
    std::byte* const there = mapping->at(piece.remote);
    if (!status || guarded_copy(write ? there : here, write ? here : there, piece.size)) return;
    status = tl::unexpected(bad_memory(write ? "read" : "write to", here, piece.size));
  });
  return status;
}

std::optional<Status> FileExchange::take(ByteView message) {
  const auto about_file = decode_file_message(message);
  if (!about_file) return tl::unexpected(about_file.error());
  if (!*about_file) return std::nullopt;
  if (const auto* const want = std::get_if<WantFile>(&**about_file)) {
    if (answer_) return fail(ErrorCode::kProtocol, "a cma peer asks for a file before it has its answer");
    answer_ = FileAnswer{give(*want)};
    return Status();
  }
  if (!question_) return fail(ErrorCode::kProtocol, "a cma peer gives a file that it was not asked for");
  UniqueFd file = rings_.take_descriptor(socket_);
  const bool given = std::get<FileAnswer>(**about_file).given;
  question_->answer(given ? Result<UniqueFd>(std::move(file))
                          : fail(ErrorCode::kPermissionDenied, "its owner gives no file"));
  question_.reset();
  return Status();
}

// Where the socket is full, which takes a peer that reads nothing, none is given.
bool FileExchange::give(const WantFile& want) const {
  const auto found = regions_.find(Operation::kWrite, want.region, want.key, want.base, want.size);
  if (!found || !(*found)->info().shared) return false;
  constexpr std::array kWord{std::byte{0}};
  const std::span descriptors(&(*found)->info().shared->file(), 1);
  return socket::send_packet(socket_, kWord, descriptors, std::chrono::steady_clock::now()).has_value();
}

Result<bool> FileExchange::send_answer() {
  auto sent = rings_.ask(encode(*answer_), socket_);
  if (sent && *sent) answer_.reset();
  return sent;
}

}  // namespace p2p::cma
