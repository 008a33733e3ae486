// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_place.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/thread.h"
#include "p2p/host_port.h"

namespace p2p {
namespace {

using Clock = std::chrono::steady_clock;

// Between two attempts to serve the place, or to reach whoever does.
constexpr std::chrono::milliseconds kPause{500};

constexpr std::size_t kMostPacket = 16384;
constexpr off_t kMostPage = off_t{64} << 20;
constexpr std::size_t kMostName = 64;

// Places that others may reach are of those who allow that. Of a long text the end, where the port is.
std::string name_of(const http::Server::Settings& settings) {
  const auto read = HostPort::parse(settings.place);
  if (!read || read->port.value_or(0) == 0) return {};
  const std::string name =
      fmt::format("p2p-metrics-{}{}{}", ::geteuid(), settings.anybody ? '+' : '-', settings.place);
  return name.size() > kMostName ? name.substr(name.size() - kMostName) : name;
}

Status send_text(const UniqueFd& socket, const std::string& text,
                 std::span<const UniqueFd> descriptors = {}) {
  return socket::send_packet(socket, as_bytes(text), descriptors, Clock::now() + kPause);
}

// A page goes as a file in memory, since packets are small.
Result<UniqueFd> as_file(const std::string& page) {
  UniqueFd file = UniqueFd::of(::memfd_create, "p2p-metrics", MFD_CLOEXEC);
  if (!file || ::write(file.get(), page.data(), page.size()) != static_cast<ssize_t>(page.size())) {
    return tl::unexpected(system_error("write a page of metrics"));
  }
  return file;
}

Result<std::string> page_of(const UniqueFd& file) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > kMostPage) {
    return fail(ErrorCode::kProtocol, "read a page of metrics: it is no file, or too long");
  }
  std::string page(static_cast<std::size_t>(status.st_size), 0);
  if (::pread(file.get(), page.data(), page.size(), 0) != static_cast<ssize_t>(page.size())) {
    return tl::unexpected(system_error("read a page of metrics"));
  }
  return page;
}

}  // namespace

MetricsPlace::MetricsPlace(const http::Server::Settings& settings, Answer own)
    : settings_(settings), own_(std::move(own)), name_(name_of(settings)) {}

Result<std::unique_ptr<MetricsPlace>> MetricsPlace::join(const http::Server::Settings& settings, Answer own) {
  std::unique_ptr<MetricsPlace> place(new MetricsPlace(settings, std::move(own)));
  const Status served = place->serve();
  if (served) return place;
  const ErrorCode why = served.error().code;
  if (place->name_.empty() || (why != ErrorCode::kSystem && why != ErrorCode::kPeerGone)) {
    return tl::unexpected(served.error());
  }
  if (why == ErrorCode::kSystem) {
    log(LogLevel::kWarning, "no metrics are served until the place is free: {}", served.error().message);
  }
  place->stop_ = UniqueFd::of(::eventfd, 0U, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!place->stop_) return tl::unexpected(system_error("open an eventfd"));
  auto started = start_thread("p2p-metrics", [self = place.get()] {
    guard_memory("metrics of this process", [self] { self->run(); });
  });
  if (!started) return tl::unexpected(started.error());
  place->thread_ = std::move(*started);
  return place;
}

MetricsPlace::~MetricsPlace() {
  if (thread_.joinable()) {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
}

std::string MetricsPlace::served() const {
  MutexLock lock(mutex_);
  return server_ ? server_->place() : std::string();
}

// kPeerGone: another process has it, or is about to leave it.
Status MetricsPlace::serve() {
  if (!name_.empty()) {
    auto listener = socket::listen_locally(name_);
    if (!listener) return fail(ErrorCode::kPeerGone, "{}", listener.error().message);
    listener_ = std::move(*listener);
  }
  auto server =
      http::Server::start(settings_, [this](const http::Request& request) { return together(request); });
  if (!server) {
    listener_.reset();
    return tl::unexpected(server.error());
  }
  log(LogLevel::kInfo, "metrics are served at http://{}/metrics", (*server)->place());
  MutexLock lock(mutex_);
  server_ = std::move(*server);
  return {};
}

// The next answer of a process, which says its number before its first one. kTimedOut: it is not there yet.
Result<http::Reply> MetricsPlace::answer_of(Other& other, Deadline deadline) {
  const auto bad = [] { return fail(ErrorCode::kProtocol, "read an answer of another process: it is none"); };
  for (;;) {
    auto packet = socket::receive_packet(other.socket, kMostPacket, 1, deadline);
    if (!packet) return tl::unexpected(packet.error());
    const std::string text = to_string(packet->bytes);
    if (other.process.empty()) {
      if (text.find_first_not_of("0123456789") != std::string::npos) return bad();
      other.process = text;
      continue;
    }
    std::istringstream words(text);
    std::uint64_t number = 0;
    http::Reply reply;
    words >> number >> reply.status >> std::ws;
    if (!words || !std::getline(words, reply.type) || number != other.asked || packet->descriptors.empty()) {
      return bad();
    }
    other.asked = 0;
    if (Status read = move_into(reply.body, page_of(packet->descriptors.front())); !read) {
      return tl::unexpected(read.error());
    }
    return reply;
  }
}

// Whoever has connected since, of this user.
void MetricsPlace::welcome() {
  while (UniqueFd socket = socket::accept_local(listener_)) {
    const auto user = socket::user_at(socket);
    if (user && *user == ::geteuid()) others_.push_back({std::move(socket), {}, 0});
  }
}

// False if it still owes an answer from before. One that is gone loses its socket.
bool MetricsPlace::ask(Other& other, const http::Request& request) {
  if (other.asked != 0) {
    const auto late = answer_of(other, Clock::now());
    if (!late && late.error().code == ErrorCode::kTimedOut) return false;
    if (!late) other.socket.reset();
  }
  if (!other.socket) return true;
  other.asked = ++questions_;
  const std::string text = fmt::format("{} {}\n{}", other.asked, request.path, request.accept);
  if (!send_text(other.socket, text)) other.socket.reset();
  return true;
}

http::Reply MetricsPlace::together(const http::Request& request) {
  if (request.path != "/metrics" && request.path != "/healthz" && request.path != "/readyz")
    return own_(request);
  if (!name_.empty()) welcome();
  const auto deadline = Clock::now() + kPatience;
  std::vector<bool> owe;
  owe.reserve(others_.size());
  for (Other& other : others_) owe.push_back(!ask(other, request));
  std::vector<ProcessReply> replies{{std::to_string(::getpid()), own_(request)}};
  for (std::size_t i = 0; i < others_.size(); ++i) {
    Other& other = others_[i];
    if (!other.socket) continue;
    std::optional<http::Reply> reply;
    if (!owe[i]) {
      auto answer = answer_of(other, deadline);
      if (answer) {
        reply = std::move(*answer);
      } else if (answer.error().code != ErrorCode::kTimedOut) {
        other.socket.reset();
        continue;
      }
    }
    replies.push_back({other.process.empty() ? "unknown" : other.process, std::move(reply)});
  }
  std::erase_if(others_, [](const Other& other) { return !other.socket; });
  return request.path == "/metrics" ? merge_metrics(replies) : merge_health(replies);
}

// True once the thread has to end.
bool MetricsPlace::stops_within(std::chrono::milliseconds time) const {
  pollfd stop{.fd = stop_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&stop, 1, static_cast<int>(time.count())) > 0;
}

void MetricsPlace::run() {
  while (!stops_within({})) {
    if (serve()) return;
    const auto server = socket::connect_locally(name_);
    const auto user = server ? socket::user_at(*server) : Result<uid_t>(tl::unexpected(server.error()));
    if (user && *user == ::geteuid() && send_text(*server, std::to_string(::getpid()))) {
      answer_until_gone(*server);
    } else if (stops_within(kPause)) {
      return;
    }
  }
}

// Returns when whoever serves is gone, or this object ends.
void MetricsPlace::answer_until_gone(const UniqueFd& server) const {
  for (;;) {
    std::array<pollfd, 2> either{pollfd{stop_.get(), POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
    if (::poll(either.data(), either.size(), -1) < 0 && errno != EINTR) return;
    if (either[0].revents != 0) return;
    if (either[1].revents == 0) continue;
    const auto packet = socket::receive_packet(server, kMostPacket, 0, Clock::now());
    if (!packet) return;
    std::istringstream lines(to_string(packet->bytes));
    std::string number;
    http::Request request;
    if (!(lines >> number >> request.path >> std::ws)) return;
    std::getline(lines, request.accept);
    const http::Reply reply = own_(request);
    std::vector<UniqueFd> page(1);
    if (!move_into(page[0], as_file(reply.body)) ||
        !send_text(server, fmt::format("{} {} {}", number, reply.status, reply.type), page)) {
      return;
    }
  }
}

}  // namespace p2p
