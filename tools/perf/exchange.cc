// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "exchange.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "failure.h"

namespace p2p::perf {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kRequests{"row", "arm", "check", "end", "bye"};

/// How often a side looks for a notification. Nothing is timed meanwhile.
constexpr std::chrono::microseconds kLook{500};

std::string to_hex(const RegionDescriptor& descriptor) {
  std::string hex;
  for (const std::byte byte : descriptor.serialize()) {
    fmt::format_to(std::back_inserter(hex), "{:02x}", static_cast<unsigned>(byte));
  }
  return hex;
}

Result<RegionDescriptor> from_hex(const std::string& hex) {
  std::array<std::byte, RegionDescriptor::kBytes> bytes{};
  if (hex.size() != 2 * bytes.size()) return fail(ErrorCode::kProtocol, "a descriptor of a wrong length");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char* const digits = hex.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
      return fail(ErrorCode::kProtocol, "a descriptor that is not hexadecimal");
    }
    bytes[i] = static_cast<std::byte>(value);
  }
  return RegionDescriptor::parse(bytes);
}

json to_json(const Row& row) {
  return {{"op", to_string(row.operation)}, {"size", row.size}, {"blocks", row.blocks}, {"depth", row.depth},
          {"verify", row.verify},           {"seed", row.seed}, {"beside", row.beside}};
}

/// Throws json::exception where a field is missing or of a wrong type.
Result<Row> to_row(const json& message) {
  Row row;
  const auto operation = parse_operation(message.at("op").get<std::string>());
  if (!operation) return tl::unexpected(operation.error());
  row.operation = *operation;
  message.at("size").get_to(row.size);
  message.at("blocks").get_to(row.blocks);
  message.at("depth").get_to(row.depth);
  message.at("verify").get_to(row.verify);
  message.at("seed").get_to(row.seed);
  row.beside = message.value("beside", std::uint64_t{0});
  if (const Status good = check(row); !good) return tl::unexpected(good.error());
  return row;
}

Result<Ask> to_ask(const json& message) {
  Ask ask;
  const auto name = message.at("request").get<std::string>();
  const auto found = std::find(kRequests.begin(), kRequests.end(), name);
  if (found == kRequests.end()) return fail(ErrorCode::kProtocol, "an unknown request \"{}\"", name);
  ask.request = static_cast<Request>(found - kRequests.begin());
  message.at("seed").get_to(ask.seed);
  message.at("used_slots").get_to(ask.used_slots);
  if (ask.request == Request::kRow) {
    const auto row = to_row(message.at("row"));
    if (!row) return tl::unexpected(row.error());
    ask.row = *row;
  }
  return ask;
}

Result<Reply> to_reply(const json& message) {
  Reply reply;
  message.at("error").get_to(reply.error);
  for (const auto& [name, field] :
       {std::pair("descriptor", &reply.descriptor), std::pair("spare", &reply.spare)}) {
    const auto hex = message.find(name);
    if (hex == message.end()) continue;
    const auto descriptor = from_hex(hex->get<std::string>());
    if (!descriptor) return tl::unexpected(descriptor.error());
    *field = *descriptor;
  }
  return reply;
}

/// `parse` of a message from the peer, whose wrong fields become an error.
template <class Parse>
auto parse_message(const json& message, Parse&& parse) -> decltype(parse(message)) {
  try {
    return parse(message);
  } catch (const json::exception& error) {
    return fail(ErrorCode::kProtocol, "read a message of the other p2p-perf: {}", error.what());
  }
}

}  // namespace

Status Exchange::send(const json& message) {
  const Transfer sent = connection_.notify(message.dump());
  return sent.wait(kPatience);
}

Status Exchange::send(const Ask& ask) {
  json message{{"request", kRequests[static_cast<std::size_t>(ask.request)]},
               {"seed", ask.seed},
               {"used_slots", ask.used_slots}};
  if (ask.request == Request::kRow) message["row"] = to_json(ask.row);
  return send(message);
}

Status Exchange::send(const Reply& reply) {
  json message{{"error", reply.error}};
  if (reply.descriptor) message["descriptor"] = to_hex(*reply.descriptor);
  if (reply.spare) message["spare"] = to_hex(*reply.spare);
  return send(message);
}

Result<std::string> Exchange::receive_text(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (come_.empty()) {
    const Status usable = connection_.status();
    for (std::string& text : connection_.take_notifications()) come_.push_back(std::move(text));
    if (!come_.empty()) break;
    if (!usable) return tl::unexpected(usable.error());
    if (std::chrono::steady_clock::now() > deadline) {
      return fail(ErrorCode::kTimedOut, "nothing came from the other p2p-perf for {} ms", timeout.count());
    }
    std::this_thread::sleep_for(kLook);
  }
  std::string text = std::move(come_.front());
  come_.pop_front();
  return text;
}

Result<json> Exchange::receive(std::chrono::milliseconds timeout) {
  const auto text = receive_text(timeout);
  if (!text) return tl::unexpected(text.error());
  json message = json::parse(*text, nullptr, false);
  if (!message.is_object()) return fail(ErrorCode::kProtocol, "a message that is not a JSON object came");
  return message;
}

Result<Ask> Exchange::receive_ask(std::chrono::milliseconds timeout) {
  const auto message = receive(timeout);
  if (!message) return tl::unexpected(message.error());
  return parse_message(*message, to_ask);
}

Result<Reply> Exchange::receive_reply(std::chrono::milliseconds timeout) {
  const auto message = receive(timeout);
  if (!message) return tl::unexpected(message.error());
  return parse_message(*message, to_reply);
}

Result<Reply> Exchange::call(const Ask& ask) {
  if (const Status sent = send(ask); !sent) return tl::unexpected(sent.error());
  auto reply = receive_reply(kPatience);
  if (reply && !reply->error.empty()) return fail(ErrorCode::kUnavailable, "server: {}", reply->error);
  return reply;
}

}  // namespace p2p::perf
