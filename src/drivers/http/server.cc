// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/http/server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/memory_guard.h"
#include "base/thread.h"
#include "p2p/host_port.h"

namespace p2p::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

constexpr std::uint32_t kMostHeader = 8192;

// After which an accept that failed, for lack of descriptors say, is tried again.
constexpr std::chrono::milliseconds kPause{100};

Result<tcp::endpoint> parse(const std::string& place) {
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidArgument, "serve at \"{}\": it is no address:port", place);
  };
  auto read = HostPort::parse(place);
  if (!read || !read->port) return bad();
  if (read->host == "localhost") read->host = "127.0.0.1";
  SystemError error;
  const asio::ip::address address = asio::ip::make_address(read->host, error);
  if (error) return bad();
  return tcp::endpoint(address, *read->port);
}

}  // namespace

struct Server::Body {
  class Client;

  Body(const Settings& given, Handler take) : settings(given), handler(std::move(take)) {}

  Status open();
  void accept();
  void accepted(const SystemError& error, tcp::socket socket);
  ~Body();

  const Settings settings;
  const Handler handler;
  std::string place;
  std::list<Client*> clients;  // the oldest first
  asio::io_context io{1};      // its end is that of the clients, who use what stands above
  tcp::acceptor acceptor{io};
  asio::steady_timer timer{io};
  std::thread thread;
};

/// One connection, until its answer has been sent or its time is up.
class Server::Body::Client : public std::enable_shared_from_this<Client> {
 public:
  Client(Body& server, tcp::socket socket)
      : server_(server), at_(server.clients.insert(server.clients.end(), this)), stream_(std::move(socket)) {
    parser_.header_limit(kMostHeader);
  }
  ~Client() { server_.clients.erase(at_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void run() {
    stream_.expires_after(server_.settings.patience);  // for all of it
    bhttp::async_read(stream_, buffer_, parser_,
                      [self = shared_from_this()](const SystemError& error, std::size_t) {
                        if (!error) self->answer();
                      });
  }

  /// What it waits for fails, and that ends it.
  void cut_off() { stream_.close(); }

 private:
  void answer() {
    const auto& request = parser_.get();
    const bool known = request.method() == bhttp::verb::get || request.method() == bhttp::verb::head;
    const std::string target(request.target());
    Reply reply = known ? server_.handler({target.substr(0, target.find('?')),
                                           std::string(request[bhttp::field::accept])})
                        : Reply{405, "text/plain", "GET and HEAD only\n"};
    response_.version(request.version());
    response_.result(reply.status);
    response_.set(bhttp::field::content_type, reply.type);
    response_.keep_alive(false);
    response_.content_length(reply.body.size());
    if (request.method() != bhttp::verb::head) response_.body() = std::move(reply.body);
    bhttp::async_write(stream_, response_, [self = shared_from_this()](const SystemError&, std::size_t) {
      SystemError ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  Body& server_;
  const std::list<Client*>::iterator at_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostHeader};
  bhttp::request_parser<bhttp::empty_body> parser_;
  bhttp::response<bhttp::string_body> response_;
};

Status Server::Body::open() {
  const auto endpoint = parse(settings.place);
  if (!endpoint) return tl::unexpected(endpoint.error());
  if (!settings.anybody && !endpoint->address().is_loopback()) {
    return fail(ErrorCode::kPermissionDenied, "serve at {}: other hosts reach that address", settings.place);
  }
  SystemError error;
  {
    const DescriptorChange change;
    if (!acceptor.open(endpoint->protocol(), error)) keep_from_children(acceptor.native_handle());
  }
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  if (!error) acceptor.listen(static_cast<int>(settings.most_clients), error);
  if (error) return fail(ErrorCode::kSystem, "serve at {}: {}", settings.place, error.message());
  const std::string port = std::to_string(acceptor.local_endpoint(error).port());
  place = settings.place.substr(0, settings.place.rfind(':') + 1) + port;
  accept();
  auto started = start_thread("p2p-http", [this] {
    while (!io.stopped()) guard_memory("an answer by HTTP", [this] { io.run(); });
  });
  if (!started) return tl::unexpected(started.error());
  thread = std::move(*started);
  return {};
}

// A client's socket, which lives for `patience` at most, stays with children: the library closes it itself.
Server::Body::~Body() {
  if (!acceptor.is_open()) return;
  const DescriptorChange change;
  forget_descriptor(acceptor.native_handle());
  SystemError ignored;
  acceptor.close(ignored);
}

void Server::Body::accept() {
  acceptor.async_accept(
      [this](const SystemError& error, tcp::socket socket) { accepted(error, std::move(socket)); });
}

void Server::Body::accepted(const SystemError& error, tcp::socket socket) {
  if (error == asio::error::operation_aborted) return;
  if (error) {
    timer.expires_after(kPause);
    timer.async_wait([this](const SystemError& cut) {
      if (!cut) accept();
    });
    return;
  }
  // Those who are slow give way: whoever asks at once is answered before so many others have come.
  if (clients.size() >= settings.most_clients) clients.front()->cut_off();
  std::make_shared<Client>(*this, std::move(socket))->run();
  accept();
}

Server::Server(std::unique_ptr<Body> body) : body_(std::move(body)) {}

Result<std::unique_ptr<Server>> Server::start(const Settings& settings, Handler handler) {
  auto body = std::make_unique<Body>(settings, std::move(handler));
  if (Status opened = body->open(); !opened) return tl::unexpected(opened.error());
  return std::unique_ptr<Server>(new Server(std::move(body)));
}

Server::~Server() {
  body_->io.stop();
  body_->thread.join();
}

const std::string& Server::place() const { return body_->place; }

}  // namespace p2p::http
