// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Keys and values are those of Python's uccl.directory, by etcd's JSON gateway.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "api/directory_drivers.h"
#include "api/json.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/peer_text.h"
#include "drivers/http/client.h"
#include "drivers/socket/dial.h"
#include "p2p/host_port.h"

namespace p2p::directories {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

// For all that one call of a directory asks of the server.
constexpr std::chrono::seconds kEtcdPatience{3};
constexpr std::uint64_t kMostAnswerBytes = 16 << 20;
constexpr std::size_t kMostSaid = 300;
constexpr std::uint16_t kEtcdPort = 2379;

// In one transaction; etcd takes 128, unless it is told another number.
constexpr std::size_t kPutsAtOnce = 100;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string base64(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    const std::string_view part = text.substr(at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i != 3; ++i) {
      bits = bits << 8 | (i < part.size() ? static_cast<unsigned char>(part[i]) : 0U);
    }
    for (std::size_t i = 0; i != 4; ++i) {
      out.push_back(i <= part.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=');
    }
  }
  return out;
}

/// Nothing for what is none.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i != text.size(); ++i) {
    const std::size_t digit = i < text.size() - padding ? kDigits.find(text[i]) : 0;
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) out.push_back(static_cast<char>(bits >> shift));
  }
  out.resize(out.size() - padding);
  return out;
}

/// A number within an answer, as it is written, in quotes or not. Null where there is none.
const std::string* number(const Json* object, std::string_view name) {
  const Json* const value = object == nullptr ? nullptr : object->find(name);
  const std::string* const text = value == nullptr ? nullptr : value->scalar();
  const bool is = text != nullptr && !text->empty() && text->size() <= 20 &&
                  text->find_first_not_of("0123456789") == std::string::npos;
  return is ? text : nullptr;
}

struct Pair {
  std::string key;
  std::string value;
};

/// What a range has found; nothing for what is no answer to that.
std::optional<std::vector<Pair>> pairs_of(const Json& answer) {
  std::vector<Pair> pairs;
  const Json* const found = answer.find("kvs");
  if (found == nullptr) return pairs;
  if (found->list() == nullptr) return std::nullopt;
  for (const Json& each : *found->list()) {
    const auto bytes = [&each](const char* name) -> std::optional<std::string> {
      const Json* const field = each.find(name);
      if (field == nullptr) return std::string();
      return field->scalar() == nullptr ? std::nullopt : from_base64(*field->scalar());
    };
    auto key = bytes("key");
    auto value = bytes("value");
    if (!key || !value) return std::nullopt;
    pairs.push_back({std::move(*key), std::move(*value)});
  }
  return pairs;
}

/// Keys under one prefix, which live as long as one lease of etcd's, renewed by one call.
class EtcdDirectory : public Driver {
 public:
  EtcdDirectory(HostPort server, std::string prefix, std::chrono::milliseconds lease)
      : server_(std::move(server)), prefix_(std::move(prefix)), lease_(lease) {}

  Status put(const DirectoryEntry& entry) override {
    listed_[entry.name].clear();  // until it is there as it is now
    return put_all(std::span(&entry, 1), patience());
  }

  Status renew(const Entries& published) override {
    const Deadline deadline = patience();
    if (Status kept = keep_alive(deadline); !kept) return kept;
    // The lease keeps what could not be withdrawn, or was put though its answer was lost.
    for (const auto& [name, under] : std::map(listed_)) {
      if (published.contains(name)) continue;
      if (Status removed = remove_by(name, deadline); !removed) return removed;
    }
    std::vector<DirectoryEntry> lost;
    for (const auto& [name, entry] : published) {
      if (lease_id_.empty() || listed_[name] != lease_id_) lost.push_back(entry);
    }
    for (std::size_t at = 0; at < lost.size(); at += kPutsAtOnce) {
      const auto some = std::span(lost).subspan(at, std::min(kPutsAtOnce, lost.size() - at));
      if (Status put = put_all(some, deadline); !put) return put;
    }
    return {};
  }

  Status remove(const std::string& name) override { return remove_by(name, patience()); }

  /// Who has since put a name of this process's under a lease of his own keeps it.
  void end(const Entries& /*published*/) override {
    if (!lease_id_.empty()) static_cast<void>(ask("lease/revoke", {{"ID", lease_id_}}, patience()));
  }

  Result<std::optional<DirectoryEntry>> get(const std::string& name) override {
    auto found = range({{"key", key_of(name)}});
    if (!found) return tl::unexpected(found.error());
    const auto at = found->find(name);
    return at == found->end() ? std::nullopt : std::optional(std::move(at->second));
  }

  Result<Entries> all() override {
    return range({{"key", base64(prefix_)}, {"range_end", base64(range_end())}});
  }

  // How many there are, and which of the store's changes was the last of theirs.
  Result<std::string> mark() override {
    const auto answer = ask("kv/range",
                            {{"key", base64(prefix_)},
                             {"range_end", base64(range_end())},
                             {"limit", "1"},
                             {"sort_order", "DESCEND"},
                             {"sort_target", "MOD"}},
                            patience());
    if (!answer) return tl::unexpected(answer.error());
    const Json* const found = answer->find("kvs");
    const auto* const list = found == nullptr ? nullptr : found->list();
    const std::string* const last =
        list == nullptr || list->empty() ? nullptr : number(&list->front(), "mod_revision");
    const std::string* const count = number(&*answer, "count");
    return fmt::format("{} {}", count == nullptr ? "0" : *count, last == nullptr ? "0" : *last);
  }

 private:
  using Fields = std::vector<std::pair<const char*, std::string>>;

  static Deadline patience() { return std::chrono::steady_clock::now() + kEtcdPatience; }
  std::string key_of(const std::string& name) const { return base64(prefix_ + name); }
  std::string range_end() const { return prefix_.substr(0, prefix_.size() - 1) + static_cast<char>('/' + 1); }
  std::string url() const { return "http://" + server_.text(); }

  static std::string object(const Fields& fields) {
    std::string text;
    for (const auto& [name, value] : fields) {
      text += fmt::format("{}\"{}\": \"{}\"", text.empty() ? "" : ", ", name, value);
    }
    return "{" + text + "}";
  }

  Result<Json> ask(const std::string& call, const Fields& fields, Deadline deadline) const {
    return ask(call, object(fields), deadline);
  }

  Result<Json> ask(const std::string& call, std::string body, Deadline deadline) const {
    const auto failed = [&](ErrorCode code, std::string_view why) {
      return fail(code, "{} of etcd at {}: {}", call, url(), PeerText(why, kMostSaid));
    };
    const auto socket = socket::dial(server_.host, *server_.port, deadline);
    if (!socket) return failed(socket.error().code, socket.error().message);
    const auto answer =
        http::post(socket->get(), {server_.text(), "/v3/" + call, "application/json", std::move(body)},
                   deadline, kMostAnswerBytes);
    if (!answer) return failed(answer.error().code, answer.error().message);
    if (answer->status != 200) {
      return failed(ErrorCode::kUnavailable, fmt::format("it answers {}: {}", answer->status, answer->body));
    }
    auto json = Json::parse(answer->body);
    if (!json || !json->is_object()) return no_answer(call);
    return std::move(*json);
  }

  tl::unexpected<Error> no_answer(std::string_view call) const {
    return fail(ErrorCode::kProtocol, "{} of etcd at {}: an answer that is none", call, url());
  }

  Status remove_by(const std::string& name, Deadline deadline) {
    const auto answer = ask("kv/deleterange", {{"key", key_of(name)}}, deadline);
    if (!answer) return tl::unexpected(answer.error());
    listed_.erase(name);
    return {};
  }

  Status keep_alive(Deadline deadline) {
    if (lease_id_.empty()) return {};
    const auto answer = ask("lease/keepalive", {{"ID", lease_id_}}, deadline);
    if (!answer) return tl::unexpected(answer.error());
    const Json* const result = answer->find("result");
    if (result == nullptr || !result->is_object()) return no_answer("lease/keepalive");
    const std::string* const left = number(result, "TTL");
    if (left == nullptr && result->find("TTL") != nullptr) return no_answer("lease/keepalive");
    if (left == nullptr || *left == "0") lease_id_.clear();  // it is over
    return {};
  }

  Status grant(Deadline deadline) {
    if (!lease_id_.empty()) return {};
    const auto answer = ask("lease/grant", {{"TTL", std::to_string(lease_.count() / 1000)}}, deadline);
    if (!answer) return tl::unexpected(answer.error());
    const std::string* const id = number(&*answer, "ID");
    if (id == nullptr) return no_answer("lease/grant");
    lease_id_ = *id;
    return {};
  }

  Status put_all(std::span<const DirectoryEntry> entries, Deadline deadline) {
    Status put = put_under(entries, deadline);
    if (put || put.error().message.find("lease not found") == std::string::npos) return put;
    lease_id_.clear();  // it is over, or this etcd has begun anew
    return put_under(entries, deadline);
  }

  Status put_under(std::span<const DirectoryEntry> entries, Deadline deadline) {
    if (Status granted = grant(deadline); !granted) return granted;
    std::string puts;
    for (const DirectoryEntry& entry : entries) {
      puts += fmt::format(
          "{}{{\"request_put\": {}}}", puts.empty() ? "" : ", ",
          object({{"key", key_of(entry.name)}, {"value", base64(text_of(entry))}, {"lease", lease_id_}}));
    }
    const auto answer = ask("kv/txn", "{\"success\": [" + puts + "]}", deadline);
    if (!answer) return tl::unexpected(answer.error());
    const Json* const done = answer->find("succeeded");
    if (done == nullptr || done->scalar() == nullptr || *done->scalar() != "true") return no_answer("kv/txn");
    for (const DirectoryEntry& entry : entries) listed_[entry.name] = lease_id_;
    return {};
  }

  /// What is no entry is passed over.
  Result<Entries> range(const Fields& fields) const {
    const auto answer = ask("kv/range", fields, patience());
    if (!answer) return tl::unexpected(answer.error());
    const auto pairs = pairs_of(*answer);
    if (!pairs) return no_answer("kv/range");
    Entries found;
    for (const auto& [key, value] : *pairs) {
      if (!key.starts_with(prefix_)) return no_answer("kv/range");
      const std::string name = key.substr(prefix_.size());
      if (auto entry = parse(name, value, std::chrono::system_clock::now())) found[name] = std::move(*entry);
    }
    return found;
  }

  const HostPort server_;
  const std::string prefix_;
  const std::chrono::milliseconds lease_;

  // Of calls that write.
  std::string lease_id_;                       // empty: none
  std::map<std::string, std::string> listed_;  // by names, under which lease; empty: not sure
};

}  // namespace

Result<std::unique_ptr<Driver>> in_etcd(const std::string& where, std::chrono::milliseconds lease) {
  const std::size_t slash = std::min(where.find('/'), where.size());
  auto server = HostPort::parse(std::string_view(where).substr(0, slash));
  if (!server)
    return fail(ErrorCode::kInvalidArgument, "use the directory etcd://{}: {}", where,
                server.error().message);
  server->port = server->port.value_or(kEtcdPort);
  std::string prefix = where.substr(slash);
  prefix.resize(prefix.find_last_not_of('/') + 1);
  if (prefix.empty()) prefix = "/uccl/endpoints";
  return std::make_unique<EtcdDirectory>(std::move(*server), prefix + "/", lease);
}

}  // namespace p2p::directories
