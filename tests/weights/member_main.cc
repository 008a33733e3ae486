// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A publisher or subscriber of weights, which does what it is told, line by line; each answer is a line, "ok
// ..." or the error. Usage:
//   weights_member publish ADDRESS[,MEMORY] TENSORS_SEED BYTES CUT_SEED
//   weights_member subscribe ADDRESS[,MEMORY] TENSORS_SEED BYTES CUT_SEED CHUNK_BYTES PUBLISHER:PORT...
// MEMORY is a place of WeightsModel::cut. It begins with "ok ADDRESS PORT". A publisher knows `publish V`,
// `publish V BASE EVERY` (one of EVERY elements is not that of BASE), `own V` (how many that are), `withdraw
// V`, `copies V COUNT` (waits) and `spoil` (changes a byte of what it published); a subscriber `stage V` ("ok
// BYTES FROM_PUBLISHER WRONG BRIDGED END DELTA_BYTES FROM_DELTAS NO_DELTA", END in seconds of the steady
// clock, once every byte is compared with the model), `again V` (in place), `beside V` (in memory other than
// before), `tell V` (says "come" once something has), `wait V` (until it is offered), `descend V BASE EVERY`
// (what the publisher was told), `commit`, `drop V` and `spoil`.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "p2p/weights/publisher.h"
#include "p2p/weights/subscriber.h"
#include "weights/model.h"

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;

void say(const std::string& line) { std::cout << line << std::endl; }

void say(const Status& status, const std::string& more = "") {
  if (status) return say("ok " + more);
  say(std::string(to_string(status.error().code)) + " " + status.error().message);
}

Options options_of(const std::string& address) {
  Options options = Options::from_environment().value();
  options.listen_address = address;
  return options;
}

struct Setup {
  std::string address;
  std::string memory;
  WeightsModel model;
  std::uint64_t cut;
};

int publish(Setup& setup) {
  auto publisher = weights::Publisher::create(options_of(setup.address));
  if (!publisher) return say(tl::unexpected(publisher.error())), 1;
  say("ok " + publisher->address() + " " + std::to_string(publisher->port()));
  std::vector<std::pair<std::uint64_t, WeightsModel::Shards>> versions;  // for each publish
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    std::uint64_t version = 0, count = 0, every = 0;
    words >> what >> version >> count >> every;
    if (what == "publish" && every > 0) {
      setup.model.descend(version, count, every);
      versions.emplace_back(version, setup.model.cut(setup.cut, setup.memory));
      setup.model.fill(versions.back().second, version);
      say(publisher->publish(version, versions.back().second.manifest, count));
    } else if (what == "publish") {
      versions.emplace_back(version, setup.model.cut(setup.cut, setup.memory));
      setup.model.fill(versions.back().second, version);
      say(publisher->publish(version, versions.back().second.manifest));
    } else if (what == "own") {
      say(Status(), std::to_string(setup.model.own_elements(version)));
    } else if (what == "withdraw") {
      say(publisher->withdraw(version));
      std::erase_if(versions, [&](const auto& one) { return one.first == version; });
    } else if (what == "copies") {
      say(publisher->wait_copies(version, count, 60s));
    } else {
      setup.model.spoil(versions.back().second);
      say("ok");
    }
  }
  return 0;
}

class SubscriberMember {
 public:
  SubscriberMember(Setup& setup, weights::Subscriber subscriber)
      : setup_(setup),
        subscriber_(std::move(subscriber)),
        shards_(setup.model.cut(setup.cut, setup.memory)) {}

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    std::uint64_t version = 0, base = 0, every = 1;
    words >> what >> version >> base >> every;
    if (what == "beside") {
      if (!other_.memory) other_ = setup_.model.cut(setup_.cut, setup_.memory);
      std::swap(shards_, other_);
    }
    if (what == "stage" || what == "again" || what == "tell" || what == "beside") return stage(version, what);
    if (what == "descend") return setup_.model.descend(version, base, every), say("ok");
    if (what == "wait") {
      const auto offered = subscriber_.wait_version(version - 1, 60s);
      return offered ? say("ok") : say(tl::unexpected(offered.error()));
    }
    if (what == "commit") {
      const auto committed = subscriber_.commit();
      return committed ? say("ok " + std::to_string(*committed)) : say(tl::unexpected(committed.error()));
    }
    if (what == "drop") return say(subscriber_.drop(version));
    setup_.model.spoil(shards_);
    say("ok");
  }

 private:
  void stage(std::uint64_t version, const std::string& how) {
    weights::StageOptions options;
    weights::Progress progress;
    options.in_place = how == "again";
    options.timeout = 600s;
    options.progress = [&](const weights::Progress& now) {
      if (how == "tell" && progress.bytes == 0 && now.bytes > 0) say("come");
      progress = now;
      return true;
    };
    const Status staged = subscriber_.stage(version, shards_.manifest, options);
    const std::chrono::duration<double> end = std::chrono::steady_clock::now().time_since_epoch();
    if (!staged) return say(staged);
    if (const std::uint64_t wrong = setup_.model.differ(shards_, version)) {
      return say("differ " + std::to_string(wrong) + " bytes");
    }
    std::ostringstream out;
    out << progress.bytes << ' ' << progress.publisher_bytes << ' ' << progress.wrong_digests << ' '
        << progress.bridged << ' ' << std::fixed << end.count() << ' ' << progress.delta_bytes << ' '
        << progress.from_deltas << ' ' << progress.no_delta;
    say(Status(), out.str());
  }

  Setup& setup_;
  weights::Subscriber subscriber_;
  WeightsModel::Shards shards_;
  WeightsModel::Shards other_;
};

int subscribe(Setup& setup, std::uint64_t chunk_bytes, std::vector<std::string> publishers) {
  weights::SubscriberOptions options;
  options.endpoint = options_of(setup.address);
  options.publishers = std::move(publishers);
  options.chunk_bytes = chunk_bytes;
  options.stall = 3s;
  auto subscriber = weights::Subscriber::create(options);
  if (!subscriber) return say(tl::unexpected(subscriber.error())), 1;
  say("ok " + subscriber->address() + " " + std::to_string(subscriber->port()));
  SubscriberMember member(setup, std::move(*subscriber));
  for (std::string line; std::getline(std::cin, line);) member.obey(line);
  return 0;
}

}  // namespace
}  // namespace p2p::testing

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](std::size_t at) { return std::strtoull(words[at].c_str(), nullptr, 10); };
  if (words.size() < 5 || (words[0] == "subscribe" && words.size() < 7)) {
    std::cerr << "weights_member: too few words\n";
    return 2;
  }
  const std::size_t comma = words[1].find(',');
  const std::string memory = comma == std::string::npos ? "host" : words[1].substr(comma + 1);
  p2p::testing::Setup setup{words[1].substr(0, comma), memory, {number(2), number(3)}, number(4)};
  if (words[0] == "publish") return p2p::testing::publish(setup);
  return p2p::testing::subscribe(setup, number(5), {words.begin() + 6, words.end()});
}
