// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Sends a megabyte from one host to another through a NCCL net plugin, without the engine.
//
//   host A:  tcpx_send_recv receive info.bin            (then bring info.bin to host B, by any means)
//   host B:  tcpx_send_recv send info.bin
//
// The plugin is libnccl-net.so, or what the third argument names; a fourth is the CUDA device whose memory is
// moved.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tcpx/buffer.h"
#include "tcpx/session.h"
#include "tcpx/transfer.h"

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr auto kPatience = 60s;

/// Whole or not at all, for whoever waits for it.
void publish(const std::string& file, const std::vector<std::byte>& bytes) {
  std::ofstream(file + ".part", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::rename(file + ".part", file);
}

std::vector<std::byte> fetch(const std::string& file) {
  for (const auto end = std::chrono::steady_clock::now() + kPatience;
       !std::filesystem::exists(file) && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(50ms);  // it comes from another machine
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::vector<std::byte> message() {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 31 >> 4);
  return bytes;
}

p2p::Status receive(tcpx::TcpxSession& session, const std::string& file, const tcpx::TcpxBuffer& buffer) {
  const auto info = session.listen();
  if (!info) return tl::unexpected(info.error());
  publish(file, *info);
  if (auto accepted = session.accept("sender", kPatience); !accepted) return accepted;
  const auto memory = session.registerMemory(buffer.data(), buffer.size());
  if (!memory) return tl::unexpected(memory.error());
  tcpx::TcpxTransfer transfer(session, "sender");
  if (auto posted = transfer.postRecv(*memory, 0, kBytes); !posted) return posted;
  if (auto done = transfer.wait(kPatience); !done) return done;
  std::vector<std::byte> bytes(kBytes);
  if (auto read = buffer.read(bytes); !read) return read;
  if (bytes == message()) return {};
  return tl::unexpected(p2p::Error{p2p::ErrorCode::kProtocol, "the bytes are not those that were sent"});
}

p2p::Status send(tcpx::TcpxSession& session, const std::string& file, const tcpx::TcpxBuffer& buffer) {
  if (auto written = buffer.write(message()); !written) return written;
  if (auto loaded = session.loadRemoteConnInfo("receiver", fetch(file)); !loaded) return loaded;
  if (auto connected = session.connect("receiver", kPatience); !connected) return connected;
  const auto memory = session.registerMemory(buffer.data(), buffer.size());
  if (!memory) return tl::unexpected(memory.error());
  tcpx::TcpxTransfer transfer(session, "receiver");
  if (auto posted = transfer.postSend(*memory, 0, kBytes); !posted) return posted;
  return transfer.wait(kPatience);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role != "send" && role != "receive") {
    std::cerr << "usage: tcpx_send_recv send|receive FILE [PLUGIN [CUDA_DEVICE]]\n";
    return 2;
  }
  tcpx::TcpxOptions options;
  if (argc > 3) options.plugin = argv[3];
  if (argc > 4) options.cuda_device = std::atoi(argv[4]);
  auto buffer = tcpx::TcpxBuffer::allocate(options.cuda_device, kBytes);
  auto session = tcpx::TcpxSession::open(options);
  p2p::Status status;
  if (!buffer) status = tl::unexpected(buffer.error());
  if (status && !session) status = tl::unexpected(session.error());
  if (status) status = (role == "send" ? send : receive)(*session, argv[2], *buffer);
  if (!status) {
    std::cerr << "tcpx_send_recv: " << status.error().message << '\n';
    return 1;
  }
  std::cout << role << ": " << kBytes << " bytes by " << session->describe() << '\n';
  return 0;
}
