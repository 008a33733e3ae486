// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "buffer.h"
#include "exchange.h"
#include "failure.h"
#include "layout.h"

namespace p2p::perf {
namespace {

constexpr std::chrono::seconds kAcceptPause{1};
constexpr std::chrono::seconds kFirstClient = std::chrono::minutes(10);
constexpr std::chrono::seconds kGoodbye{5};

/// A row's memory on the server.
class ServedRow {
 public:
  static Result<ServedRow> make(Endpoint& endpoint, const std::string& memory, const Row& row) {
    Layout layout(row, Side::kServer);
    auto buffer = Buffer::allocate(endpoint, memory, layout.bytes());
    if (!buffer) return tl::unexpected(buffer.error());
    ServedRow served(row, std::move(layout), std::move(*buffer));
    if (row.beside == 0) return served;
    auto beside = Buffer::allocate(endpoint, memory, row.beside);
    if (!beside) return tl::unexpected(beside.error());
    served.beside_.emplace(std::move(*beside));
    return served;
  }

  RegionDescriptor descriptor() const { return buffer_.region().descriptor(); }

  /// Memory for bulk transfers beside; nothing: the row has none.
  std::optional<RegionDescriptor> beside() const {
    return beside_ ? std::optional(beside_->region().descriptor()) : std::nullopt;
  }

  /// Takes what the client sends or notifies, until it says that this was all.
  Status take_all(Exchange& exchange) {
    switch (row_.operation) {
      case Operation::kWrite:
      case Operation::kRead: break;
      case Operation::kSend: return receive_all(exchange.connection());
      case Operation::kNotify: return take_notifications(exchange);
    }
    return {};
  }

  /// Why it failed, or nothing.
  std::string arm(std::uint64_t seed) {
    if (row_.operation == Operation::kRead) {
      layout_.fill(buffer_.bytes(), seed);
    } else {
      std::fill(buffer_.bytes().begin(), buffer_.bytes().end(), std::byte{});
    }
    const Status published = buffer_.publish();
    return published ? "" : published.error().message;
  }

  std::string check(std::uint64_t seed, std::uint64_t used_slots) const {
    if (row_.operation == Operation::kRead) return {};
    const bool here = row_.operation == Operation::kNotify;  // notifications reach no device
    if (const Status fetched = here ? Status() : buffer_.fetch(); !fetched) return fetched.error().message;
    return layout_.find_fault(buffer_.bytes(), seed, used_slots).value_or("");
  }

 private:
  ServedRow(const Row& row, Layout layout, Buffer buffer)
      : row_(row), layout_(std::move(layout)), buffer_(std::move(buffer)), spans_(row.blocks) {}

  /// Takes messages until an empty one comes, which each receive posted till then gets.
  Status receive_all(const Connection& connection) {
    std::deque<Transfer> posted;
    std::uint64_t count = 0;
    while (count < receives_ahead(row_)) posted.push_back(receive(connection, count++));
    bool ended = false;
    while (!posted.empty()) {
      const Transfer first = std::move(posted.front());
      posted.pop_front();
      if (const Status came = first.wait(kPatience); !came) return came;
      ended = ended || first.bytes() == 0;
      if (!ended) posted.push_back(receive(connection, count++));
    }
    return {};
  }

  /// Until an empty one comes; their blocks go where a write would put them.
  Status take_notifications(Exchange& exchange) {
    for (std::uint64_t count = 0;; ++count) {
      const auto text = exchange.receive_text(kPatience);
      if (!text) return tl::unexpected(text.error());
      if (text->empty()) return {};
      if (text->size() != row_.transfer_bytes()) {
        return fail(ErrorCode::kProtocol, "a notification of {} bytes came instead of {}", text->size(),
                    row_.transfer_bytes());
      }
      for (std::uint64_t block = 0; block < row_.blocks; ++block) {
        std::memcpy(&buffer_.bytes()[layout_.offset(count % layout_.slots(), block)],
                    text->data() + block * row_.size, row_.size);
      }
    }
  }

  Transfer receive(const Connection& connection, std::uint64_t count) {
    const std::uint64_t slot = count % layout_.slots();
    for (std::uint64_t block = 0; block < row_.blocks; ++block) {
      spans_[block] = buffer_.region().span(layout_.offset(slot, block), row_.size);
    }
    return connection.recv(spans_);
  }

  Row row_;
  Layout layout_;
  Buffer buffer_;
  std::optional<Buffer> beside_;
  std::vector<LocalSpan> spans_;
};

class Service {
 public:
  Service(Endpoint& endpoint, std::string memory, const Buffer& spare, Connection connection)
      : endpoint_(endpoint), memory_(std::move(memory)), spare_(spare), exchange_(std::move(connection)) {}

  Status serve() {
    for (;;) {
      const auto ask = exchange_.receive_ask(kPatience + row_time());
      if (!ask) return tl::unexpected(ask.error());
      const Reply reply = answer(*ask);
      if (!reply.error.empty() && error_.empty()) error_ = reply.error;
      if (const Status sent = exchange_.send(reply); !sent) return sent;
      if (ask->request == Request::kBye) break;
      if (ask->request == Request::kArm && row_) {
        if (const Status taken = row_->take_all(exchange_); !taken) return taken;
      }
    }
    wait_closed();
    if (!error_.empty()) return fail(ErrorCode::kUnavailable, "{}", error_);
    return {};
  }

 private:
  /// A client may be silent for as long as it measures.
  static std::chrono::milliseconds row_time() { return std::chrono::hours(1); }

  Reply answer(const Ask& ask) {
    Reply reply;
    switch (ask.request) {
      case Request::kRow: {
        row_.reset();
        auto row = ServedRow::make(endpoint_, memory_, ask.row);
        if (!row) return Reply{.error = row.error().message};
        row_.emplace(std::move(*row));
        reply.descriptor = row_->descriptor();
        reply.spare = row_->beside().value_or(spare_.region().descriptor());
        break;
      }
      case Request::kArm:
        if (!row_) return Reply{.error = "arm: there is no row"};
        reply.error = row_->arm(ask.seed);
        break;
      case Request::kCheck:
        if (!row_) return Reply{.error = "check: there is no row"};
        reply.error = row_->check(ask.seed, ask.used_slots);
        break;
      case Request::kEnd:
      case Request::kBye: row_.reset(); break;
    }
    return reply;
  }

  /// The client closes once it has the last reply.
  void wait_closed() {
    const Status closed = exchange_.connection().close(kGoodbye);
    (void)closed;  // what was asked is done either way
  }

  Endpoint& endpoint_;
  std::string memory_;
  const Buffer& spare_;
  Exchange exchange_;
  std::optional<ServedRow> row_;
  std::string error_;
};

/// The next client; waits for ever only where the server is to stay.
Result<Connection> next_client(Endpoint& endpoint, bool stay) {
  const auto deadline = std::chrono::steady_clock::now() + kFirstClient;
  for (;;) {
    auto connection = endpoint.accept(kAcceptPause);
    if (connection || connection.error().code != ErrorCode::kTimedOut) return connection;
    if (!stay && std::chrono::steady_clock::now() > deadline) return connection;
  }
}

}  // namespace

Status run_server(const ServerPlan& plan) {
  auto endpoint = Endpoint::create(plan.options);
  if (!endpoint) return tl::unexpected(endpoint.error());
  const auto first = place_endpoint(*endpoint, plan.memory);
  if (!first) return tl::unexpected(first.error());
  fmt::print("listening on {}:{}\n", endpoint->address(), endpoint->port());
  std::fflush(stdout);
  Status outcome;
  for (unsigned served = 0; plan.clients == 0 || served < plan.clients; ++served) {
    auto connection = next_client(*endpoint, plan.clients == 0);
    if (!connection) return tl::unexpected(connection.error());
    const Status done = Service(*endpoint, plan.memory, *first, std::move(*connection)).serve();
    if (!done) fmt::print(stderr, "p2p-perf server: {}\n", done.error().message);
    if (!done && outcome) outcome = done;
  }
  return outcome;
}

}  // namespace p2p::perf
