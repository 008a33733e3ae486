// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/http/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/wait_for_fd.h"

namespace p2p::http {
namespace {

namespace bhttp = boost::beast::http;
using Deadline = std::chrono::steady_clock::time_point;
using Parser = bhttp::response_parser<bhttp::string_body>;

constexpr std::uint32_t kMostAnswerHeader = 16384;
constexpr std::size_t kPart = 16384;

Status await(int fd, short events, Deadline deadline) {
  if (std::chrono::steady_clock::now() < deadline && wait_for_fd(fd, events, deadline)) return {};
  return fail(ErrorCode::kTimedOut, "no answer in time");
}

Status send_all(int fd, std::string_view text, Deadline deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (Status waited = await(fd, POLLOUT, deadline); !waited) return waited;
    } else if (errno != EINTR) {
      return tl::unexpected(system_error("send a request"));
    }
  }
  return {};
}

/// What has come next; 0 at the end.
Result<std::size_t> receive(int fd, boost::asio::mutable_buffer into, Deadline deadline) {
  for (;;) {
    if (Status waited = await(fd, POLLIN, deadline); !waited) return tl::unexpected(waited.error());
    const ssize_t got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EAGAIN && errno != EINTR) return tl::unexpected(system_error("read an answer"));
  }
}

std::string text_of_request(const Post& post) {
  bhttp::request<bhttp::string_body> request(bhttp::verb::post, post.path, 11, post.body);
  request.set(bhttp::field::host, post.host);
  request.set(bhttp::field::content_type, post.type);
  request.keep_alive(false);
  request.prepare_payload();
  std::ostringstream text;
  text << request;
  return text.str();
}

Status read_answer(int fd, Parser& parser, Deadline deadline, std::uint64_t most_bytes) {
  boost::beast::flat_buffer come;
  boost::system::error_code error;
  while (!parser.is_done()) {
    const auto got = receive(fd, come.prepare(kPart), deadline);
    if (!got) return tl::unexpected(got.error());
    come.commit(*got);
    if (*got == 0) {
      if (parser.got_some()) parser.put_eof(error);
      if (error || !parser.is_done()) return fail(ErrorCode::kPeerGone, "the server ended its answer early");
      break;
    }
    while (come.size() != 0 && !parser.is_done()) {
      come.consume(parser.put(come.data(), error));
      // Before memory is taken for it.
      const bool too_long = parser.is_header_done() && parser.content_length().value_or(0) > most_bytes;
      if (too_long || error == bhttp::error::body_limit) {
        return fail(ErrorCode::kMessageTooLong, "an answer that is too long");
      }
      if (error == bhttp::error::need_more) break;
      if (error) return fail(ErrorCode::kProtocol, "an answer that is no HTTP: {}", error.message());
    }
  }
  return {};
}

}  // namespace

Result<Answer> post(int fd, const Post& request, Deadline deadline, std::uint64_t most_bytes) {
  if (Status sent = send_all(fd, text_of_request(request), deadline); !sent) {
    return tl::unexpected(sent.error());
  }
  Parser parser;
  parser.header_limit(kMostAnswerHeader);
  parser.body_limit(most_bytes);
  if (Status read = read_answer(fd, parser, deadline, most_bytes); !read) return tl::unexpected(read.error());
  return Answer{parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace p2p::http
