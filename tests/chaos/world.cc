// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "support/bounds.h"

namespace p2p::chaos {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Operation::Kind;
using std::chrono::milliseconds;
using testing::kLimit;

/// What operations on a region that is taken back may end with.
bool is_refusal(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kPermissionDenied ||
         code == ErrorCode::kOutOfRange || code == ErrorCode::kCancelled;
}

/// What they end with that meet bad memory.
bool is_bad_memory(const Ending& ending) {
  return static_cast<ErrorCode>(ending.code) == ErrorCode::kSystem &&
         std::string_view(ending.message.data()).ends_with("Bad address");
}

std::string must(const Result<std::string>& answer, const char* what) {
  if (!answer) throw std::runtime_error(fmt::format("{}: {}", what, answer.error().message));
  return *answer;
}

}  // namespace

World::World(const Setting& setting, std::uint64_t seed) : setting_(setting), dice_(seed), limit_(kLimit) {
  std::array<std::vector<std::string>, 2> hosts;
  std::array<std::string, 2> addresses{"127.0.0.1", "127.0.0.1"};
  if (setting.rails != 0) {
    rails_ = std::make_unique<testing::Rails>(std::vector<std::string>(setting.rails));
    if (!rails_->made()) throw std::runtime_error(rails_->made().error().message);
    hosts = {rails_->left(), rails_->right()};
    addresses = {testing::Rails::kLeftAddress, testing::Rails::kRightAddress};
  } else if (!setting.congestion_control.empty()) {
    make_link(seed);
    hosts = {link_->left(), link_->right()};
    addresses = {testing::LongLink::kLeftAddress, testing::LongLink::kRightAddress};
  }
  for (std::size_t side = 0; side != 2; ++side) {
    std::vector<std::string> environment = setting.environment;
    environment.push_back("UCCL_P2P_LISTEN_ADDRESS=" + addresses[side]);
    if (rails_) environment.push_back("UCCL_P2P_INTERFACES=" + rails_->interfaces());
    environment.push_back(fmt::format("UCCL_P2P_KEEPALIVE_MS={}", setting.keepalive.count()));
    workers_[side] = std::make_unique<Worker>(environment, hosts[side], setting.gpus[side]);
    arenas_.emplace_back(fmt::format("worker {}", side), side, workers_[side]->board());
    workers_[side]->start();
    for (std::size_t slot = 0; slot != Board::kEndings; ++slot) slots_[side].push_back(slot);
  }
}

void World::make_link(std::uint64_t seed) {
  if (const std::string missing = testing::LongLink::missing(); !missing.empty()) {
    throw std::runtime_error(missing);
  }
  link_ = std::make_unique<testing::LongLink>(seed, "");
  if (const Status made = link_->set_congestion_control(setting_.congestion_control); !made) {
    throw std::runtime_error(made.error().message);
  }
}

void World::register_all() {
  for (std::size_t side = 0; side != 2; ++side) {
    for (std::size_t region = 0; region != Arena::kRegions; ++region) {
      if (regions_[side][region] == Region::kDown) register_one(side, region);
    }
  }
}

void World::register_one(std::size_t side, std::size_t region, const std::string& before) {
  descriptors_[side][region] =
      must(workers_[side]->call(fmt::format("region {} {} {} {}", region, arenas_[side].region_offset(region),
                                            Arena::region_size(), before)),
           "register");
  regions_[side][region] = Region::kUp;
}

std::uint64_t World::ask_to_connect(std::size_t connection, std::size_t side) {
  const Worker& peer = *workers_[1 - side];
  return workers_[side]->ask(fmt::format("connect {} {} {} {}", connection, peer.address(), peer.port(),
                                         milliseconds(kLimit / 2).count()));
}

void World::connect(std::size_t connections, std::size_t first) {
  register_all();
  for (connections_ = 0; connections_ != connections; ++connections_) {
    const std::size_t side = (first + connections_) % 2;
    const std::uint64_t question = ask_to_connect(connections_, side);
    must(workers_[side]->answer(question, kLimit), "connect");
    must(
        workers_[1 - side]->call(fmt::format("accept {} {}", connections_, milliseconds(kLimit / 2).count())),
        "accept");
  }
}

void World::open(std::size_t connections, std::size_t first) {
  connect(connections, first);
  import_all();
}

void World::import_all() {
  for (std::size_t side = 0; side != 2; ++side) {
    for (std::size_t region = 0; region != Arena::kRegions; ++region) import(side, region);
  }
}

std::uint64_t World::ask_to_import(std::size_t connection, std::size_t side, std::size_t region, bool again) {
  return workers_[1 - side]->ask(fmt::format("import {} {} {} {} {}", connection, region,
                                             descriptors_[side][region], milliseconds(kLimit / 2).count(),
                                             again ? "again" : ""));
}

void World::import(std::size_t side, std::size_t region, bool again) {
  for (std::size_t connection = 0; connection != connections_; ++connection) {
    must(workers_[1 - side]->answer(ask_to_import(connection, side, region, again), kLimit), "import");
  }
}

Cell* World::pick(std::size_t side, std::size_t size, Region state) {
  std::vector<Cell>& cells = arenas_[side].cells();
  const std::size_t first = dice_.between(0, cells.size() - 1);
  for (std::size_t i = 0; i != cells.size(); ++i) {
    Cell& cell = cells[(first + i) % cells.size()];
    if (cell.size == size && cell.user == nullptr && regions_[side][cell.region] == state) return &cell;
  }
  return nullptr;
}

// Strips of equal size with one block in each, which lies there at another place on the other side.
std::vector<Block> World::cut(std::size_t size) {
  const std::size_t count = dice_.one_in(2) ? 1 : dice_.up_to(40);
  const std::size_t strip = size / count;
  std::vector<Block> blocks;
  for (std::size_t at = 0; at + strip <= size; at += strip) {
    const std::size_t bytes = dice_.one_in(2) ? strip - strip / 16 : dice_.up_to(strip);
    blocks.push_back({at + dice_.between(0, strip - bytes), at + dice_.between(0, strip - bytes), bytes});
  }
  if (dice_.one_in(2)) std::swap(blocks.front(), blocks[dice_.between(0, blocks.size() - 1)]);
  return blocks;
}

std::unique_ptr<Operation> World::make(Kind kind, std::size_t side, Cell* local, Cell* remote) {
  auto operation = std::make_unique<Operation>();
  operation->kind = kind;
  operation->side = side;
  operation->number = number_;
  operation->local = local;
  operation->remote = remote;
  operation->slot = slots_[side].back();
  slots_[side].pop_back();
  local->user = operation.get();
  if (remote != nullptr) remote->user = operation.get();
  return operation;
}

void World::start(const Mix& mix) {
  constexpr std::array kKinds{Kind::kWrite, Kind::kRead, Kind::kWrite, Kind::kRead, Kind::kSend};
  start_one(kKinds[dice_.between(0, kKinds.size() - 1)], mix);
}

void World::start_one(Kind kind, const Mix& mix) {
  const std::size_t side = dice_.between(0, 1);
  const bool message = kind == Kind::kSend;
  const auto [here, there] = pick_both(side, message, mix);
  if (here == nullptr || there == nullptr || slots_[0].size() < 2 || slots_[1].size() < 2) return;
  ++number_;
  auto operation = make(kind, side, here, message ? nullptr : there);
  operation->connection = dice_.between(0, connections_ - 1);
  if (!message && dice_.one_in(3)) {
    lay_out(*operation, Shapes::any(dice_, here->size));
  } else {
    operation->blocks = cut(here->size);
  }
  operation->verifies = !message && dice_.one_in(3);
  operation->then = arena(kind == Kind::kRead ? *there : *here).gather(*operation);
  operation->cancelled = mix.cancel_one_in != 0 && dice_.one_in(mix.cancel_one_in);
  operation->notifies = !message && dice_.one_in(4);
  operation->region_gone =
      regions_[side][here->region] == Region::kDown || regions_[1 - side][there->region] == Region::kDown;
  operation->bad = bad_.spoils(*operation);
  if (!message) return post(std::move(operation), mix);
  auto twin = make(Kind::kRecv, 1 - side, there, nullptr);
  twin->connection = operation->connection;
  twin->cancelled = operation->cancelled;
  twin->then = operation->then;
  for (const Block& block : operation->blocks) twin->blocks.push_back({block.remote, 0, block.size});
  operation->bad = twin->bad = operation->bad || bad_.spoils(*twin);
  if (operation->bad && operation->is_short()) return drop(*operation), drop(*twin);
  if (dice_.one_in(2)) std::swap(operation, twin);
  post(std::move(operation), mix);
  post(std::move(twin), mix);
}

// It was not posted.
void World::drop(const Operation& operation) {
  slots_[operation.side].push_back(operation.slot);
  operation.local->user = nullptr;
  if (operation.remote != nullptr) operation.remote->user = nullptr;
}

void World::lay_out(Operation& operation, const Shapes& shapes) const {
  operation.blocks = shapes.blocks();
  operation.strided =
      shapes.local.words(in_region(operation.local)) + shapes.remote.words(in_region(operation.remote));
}

std::size_t World::in_region(const Cell* cell) const {
  return cell == nullptr ? 0 : cell->offset - arenas_[cell->side].region_offset(cell->region);
}

// The end of a command.
std::string World::where(const Operation& operation) const {
  if (!operation.strided.empty()) return " 0" + operation.strided;
  std::string words = fmt::format(" {}", operation.blocks.size());
  for (const Block& block : operation.blocks) {
    words += fmt::format(" {} {} {}", in_region(operation.local) + block.local,
                         in_region(operation.remote) + block.remote, block.size);
  }
  return words;
}

void World::post(std::unique_ptr<Operation> operation, const Mix& mix) {
  Operation& one = *operation;
  Worker& caller = *workers_[one.side];
  const std::size_t here = one.local->region;
  const std::size_t there = one.is_message() ? 0 : one.remote->region;
  const bool drop = !one.is_message() && mix.drop_one_in != 0 && dice_.one_in(mix.drop_one_in);
  const bool at_once = one.cancelled && !one.is_message() && dice_.one_in(2);
  std::string command = fmt::format("transfer {} {} {} {} {} {} {} {} {} {}", one.name(), one.connection,
                                    one.slot, one.notifies ? fmt::format("{}", one.number) : "-",
                                    dice_.between(0, 1), at_once ? fmt::format("{}", dice_.up_to(256)) : "-",
                                    drop ? 1 : 0, one.verifies ? 1 : 0, here, there);
  command += where(one);
  if (one.notifies) notes_.sent(one.number, fmt::format("{}", one.number).size() + one.slot * 37);
  one.start = Clock::now();
  if (one.cancelled && !at_once) one.cancel_at = one.start + std::chrono::microseconds(dice_.up_to(2048));
  caller.board().ending(one.slot).state.store(Ending::kUnderWay, std::memory_order_relaxed);
  ++counts_.started;
  flying_.push_back(std::move(operation));
  if (drop) {
    mark_leaving(one.side, here);
    regions_[one.side][here] = Region::kDropped;
  }
  caller.tell(command);
}

void World::go_on(const Mix& mix, Time end) {
  Time next_check = Clock::now();
  while (Clock::now() < end) {
    const bool moved = collect();
    if (mix.renew_one_in != 0 && dice_.one_in(mix.renew_one_in)) {
      renew(dice_.between(0, 1), dice_.between(0, Arena::kRegions - 1));
    }
    const std::size_t before = flying_.size();
    if (before < mix.depth) start(mix);
    if (!moved && flying_.size() == before) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (Clock::now() < next_check) continue;
    check();
    next_check = Clock::now() + milliseconds(100);
  }
}

bool World::collect() {
  hear();
  cancel_what_is_due();
  std::vector<std::unique_ptr<Operation>> ended;
  std::erase_if(flying_, [&](std::unique_ptr<Operation>& one) {
    const Ending& ending = workers_[one->side]->board().ending(one->slot);
    if (ending.state.load(std::memory_order_acquire) != Ending::kEnded) return false;
    ended.push_back(std::move(one));
    return true;
  });
  const bool any = !ended.empty();
  for (auto& one : ended) finish(std::move(one));
  expect_in_time();
  register_dropped();
  return any;
}

void World::cancel_what_is_due() {
  const Time now = Clock::now();
  for (const auto& one : flying_) {
    if (one->cancel_at == Time{} || one->cancel_at > now) continue;
    one->cancel_at = {};
    workers_[one->side]->tell(fmt::format("cancel {}", one->slot));
  }
}

void World::finish(std::unique_ptr<Operation> operation) {
  Operation& one = *operation;
  const Ending& ending = workers_[one.side]->board().ending(one.slot);
  const bool success = ending.code == Ending::kSuccess;
  const auto code = static_cast<ErrorCode>(ending.code);
  if (!success && !may_fail(one, ending)) {
    throw std::runtime_error(fmt::format("operation {}, a {} by worker {}, failed: {}", one.number,
                                         one.name(), one.side, ending.message.data()));
  }
  if (success) expect_due_failure(one);
  Cell* const target = one.target();
  if (target != nullptr) {
    success ? arena(*target).expect_landed(one) : arena(*target).expect_either(one);
  }
  ++(success ? counts_.done : code == ErrorCode::kCancelled ? counts_.cancelled : counts_.failed);
  const auto from = std::max(one.start, trouble_);
  counts_.longest = std::max(counts_.longest, std::chrono::duration_cast<milliseconds>(Clock::now() - from));
  slots_[one.side].push_back(one.slot);
  if (success) notes_.done(one.number);
  const std::string_view said(ending.message.data());
  const bool may_still = said.find("may still") != std::string_view::npos;
  if (success || !may_still) free(one.local);
  // With the connection's end a peer may have been at it: its owner knows when that is over, and nobody else.
  const bool with_connection = said.find("the connection was closed by this side") != std::string_view::npos;
  const bool ended_there = success || ((is_refusal(code) || is_bad_memory(ending)) && !with_connection) ||
                           one.kind != Kind::kWrite;
  if (!success && is_bad_memory(ending)) notes_.never(one.number);
  if (ended_there) free(one.remote);
  if (one.local != nullptr || one.remote != nullptr) return doubts_.push_back(std::move(operation));
  if (target != nullptr) target->last = std::move(operation);
}

bool World::may_fail(const Operation& operation, const Ending& ending) const {
  const auto code = static_cast<ErrorCode>(ending.code);
  if (failures_) return true;
  if ((operation.region_leaves || operation.region_gone) && is_refusal(code)) return true;
  if ((operation.bad || operation.changed) && is_bad_memory(ending)) return true;
  return operation.cancelled && code == ErrorCode::kCancelled;
}

// Nothing moves there any more: other bytes, which have to stay.
void World::free(Cell*& cell) {
  if (cell == nullptr) return;
  arena(*cell).refill(*cell);
  cell->user = nullptr;
  cell = nullptr;
}

void World::resolve(Operation& operation) {
  if (const Cell* target = operation.target()) arena(*target).expect_either(operation);
  free(operation.local);
  free(operation.remote);
}

void World::hear() {
  for (auto& worker : workers_) {
    if (!worker->alive()) continue;
    for (const Note& note : worker->take_notes()) {
      notes_.heard(note.number, note.bytes);
      for (const auto& one : flying_) {
        if (one->number != note.number || one->target() == nullptr) continue;
        arena(*one->target()).expect_landed(*one);
      }
    }
  }
}

void World::expect_in_time() const {
  const Time now = Clock::now();
  for (const auto& one : flying_) {
    if (now - std::max(one->start, trouble_) < limit_) continue;
    throw std::runtime_error(
        fmt::format("operation {}, a {} by worker {} over connection {}, has not ended after {} ms",
                    one->number, one->name(), one->side, one->connection, limit_.count()));
  }
}

void World::expect_failures(milliseconds limit) {
  failures_ = true;
  limit_ = limit;
  trouble_ = Clock::now();
}

void World::kill(std::size_t side) {
  workers_[side]->kill_now();
  std::erase_if(flying_, [&](std::unique_ptr<Operation>& one) {
    if (one->side != side) return false;
    doubts_.push_back(std::move(one));
    return true;
  });
  bad_.clear(side);
  slots_[side].clear();
  for (std::size_t slot = 0; slot != Board::kEndings; ++slot) slots_[side].push_back(slot);
  regions_[side].fill(Region::kDown);
}

void World::settle() {
  const Time end = Clock::now() + kLimit;
  while (!flying_.empty() || (!failures_ && notes_.due())) {
    if (!collect()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (Clock::now() > end) throw std::runtime_error("a notification did not come");
  }
  register_dropped();
}

std::size_t World::take_back(std::size_t side) {
  std::size_t held = 0;
  for (std::size_t region = 0; region != Arena::kRegions; ++region) {
    if (regions_[side][region] != Region::kUp) continue;
    const Status released = try_release(side, region, milliseconds(0));
    if (released) regions_[side][region] = Region::kDown;
    held += released ? 0 : 1;
  }
  return held;
}

void World::fence() {
  for (std::size_t side = 0; side != 2; ++side) {
    for (std::size_t region = 0; region != Arena::kRegions; ++region) {
      if (regions_[side][region] == Region::kUp) release(side, region);
      regions_[side][region] = Region::kDown;
    }
  }
  for (const auto& one : doubts_) resolve(*one);
  doubts_.clear();
}

void World::check() {
  for (Arena& one : arenas_) one.expect_all();
}

void World::forget() {
  const Time end = Clock::now() + setting_.keepalive + testing::kMargin;
  for (auto& worker : workers_) {
    if (!worker->alive()) continue;
    while (must(worker->call("open"), "count connections") != "0") {
      if (Clock::now() > end) throw std::runtime_error("a connection has not ended");
      std::this_thread::sleep_for(milliseconds(1));
    }
    must(worker->call("forget"), "forget");
  }
  hear();
  notes_.clear();
  connections_ = 0;
  failures_ = false;
  limit_ = kLimit;
  trouble_ = {};
}

// The region is taken back: what is under way on it may fail.
void World::mark_leaving(std::size_t side, std::size_t region) {
  const auto uses = [&](const Cell* cell) {
    return cell != nullptr && cell->side == side && cell->region == region;
  };
  std::vector<std::uint64_t> numbers;  // both sides of a message have the same
  for (const auto& one : flying_) {
    if (uses(one->local) || uses(one->remote)) numbers.push_back(one->number);
  }
  for (const auto& one : flying_) {
    one->region_leaves |= std::find(numbers.begin(), numbers.end(), one->number) != numbers.end();
  }
}

void World::release(std::size_t side, std::size_t region) {
  const Time end = Clock::now() + std::max<Clock::duration>(limit_, kLimit);
  for (;;) {
    const Status released = try_release(side, region, milliseconds(200));
    if (released) return;
    if (Clock::now() > end) throw std::runtime_error("release: " + released.error().message);
  }
}

// kTimedOut at the most.
Status World::try_release(std::size_t side, std::size_t region, milliseconds within) {
  const auto released = workers_[side]->call(fmt::format("release {} {}", region, within.count()));
  if (!released && released.error().code == ErrorCode::kTimedOut) return tl::unexpected(released.error());
  must(released, "release");
  collect();
  // Its owner has it back, whatever its peers still wait for.
  std::erase_if(doubts_, [&](const std::unique_ptr<Operation>& one) {
    for (Cell** cell : {&one->local, &one->remote}) {
      if (*cell == nullptr || (*cell)->side != side || (*cell)->region != region) continue;
      if (*cell == one->target()) arena(**cell).expect_either(*one);
      free(*cell);
    }
    return one->local == nullptr && one->remote == nullptr;
  });
  for (const auto& one : flying_) {
    Cell*& cell = one->remote;
    if (cell == nullptr || cell->side != side || cell->region != region) continue;
    if (cell == one->target()) arena(*cell).expect_either(*one);
    free(cell);
  }
  return {};
}

void World::renew(std::size_t side, std::size_t region) {
  if (regions_[side][region] != Region::kUp) return;
  take_region(side, region);
  bring_region(side, region);
}

void World::take_region(std::size_t side, std::size_t region) {
  mark_leaving(side, region);
  regions_[side][region] = Region::kDown;
  release(side, region);
}

void World::bring_region(std::size_t side, std::size_t region, bool in_place) {
  register_one(side, region, in_place ? descriptors_[side][region] : "");
  import(side, region, in_place);
  ++counts_.renewed;
}

bool World::in_use(std::size_t side, std::size_t region) const {
  const std::vector<Cell>& cells = const_cast<Arena&>(arenas_[side]).cells();
  return std::any_of(cells.begin(), cells.end(),
                     [&](const Cell& cell) { return cell.region == region && cell.user != nullptr; });
}

// Those dropped in a callback: that waits for nobody, so they come again when nothing is under way there.
void World::register_dropped() {
  for (std::size_t side = 0; side != 2; ++side) {
    for (std::size_t region = 0; region != Arena::kRegions; ++region) {
      if (regions_[side][region] != Region::kDropped || in_use(side, region)) continue;
      register_one(side, region);
      import(side, region);
      ++counts_.renewed;
    }
  }
}

}  // namespace p2p::chaos
