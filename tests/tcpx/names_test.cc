// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Names every public function of include/tcpx/, so that this program links only if the shared library has
// them.
#include <gtest/gtest.h>

#include <utility>

#include "tcpx/buffer.h"
#include "tcpx/environment.h"
#include "tcpx/interface.h"
#include "tcpx/memory_descriptor.h"
#include "tcpx/session.h"
#include "tcpx/transfer.h"

namespace tcpx {
namespace {

template <class... Functions>
bool all_there(Functions... functions) {
  return (... && (functions != nullptr));
}

TEST(Names, OfTheCppInterface) {
  EXPECT_TRUE(all_there(&TcpxBuffer::allocate, &TcpxBuffer::data, &TcpxBuffer::size, &TcpxBuffer::write,
                        &TcpxBuffer::read));
  EXPECT_TRUE(all_there(&TcpxMemoryDescriptor::serialize, &TcpxMemoryDescriptor::deserialize));
  EXPECT_TRUE(all_there(&TcpxSession::open, &TcpxSession::listen, &TcpxSession::accept,
                        &TcpxSession::loadRemoteConnInfo, &TcpxSession::connect, &TcpxSession::registerMemory,
                        &TcpxSession::deregisterMemory, &TcpxSession::describeMemory,
                        &TcpxSession::chunk_bytes, &TcpxSession::describe));
  EXPECT_TRUE(all_there(&TcpxTransfer::postSend, &TcpxTransfer::postRecv, &TcpxTransfer::isComplete,
                        &TcpxTransfer::wait, &TcpxTransfer::release));
  EXPECT_TRUE(all_there(&discover, &explain, &probe, &set_log_from_environment));
  EXPECT_TRUE(all_there(static_cast<std::vector<Finding> (*)()>(&check_environment),
                        static_cast<std::vector<Finding> (*)(const PluginReport&)>(&check_environment)));
}

TEST(Names, OfBuffersThatMoveAndEnd) {
  auto buffer = TcpxBuffer::allocate(-1, 100);
  ASSERT_TRUE(buffer);
  TcpxBuffer other = std::move(*buffer);
  *buffer = std::move(other);
  EXPECT_EQ(buffer->size(), 100u);
}

TEST(Names, OfTheCInterface) {
  EXPECT_TRUE(all_there(&tcpx_load_plugin, &tcpx_get_device_count, &tcpx_get_properties, &tcpx_listen,
                        &tcpx_connect_v5, &tcpx_accept_v5, &tcpx_reg_mr, &tcpx_dereg_mr, &tcpx_isend,
                        &tcpx_irecv, &tcpx_iflush, &tcpx_test, &tcpx_irecv_consumed, &tcpx_close_send,
                        &tcpx_close_recv, &tcpx_close_listen, &tcpx_last_error));
}

}  // namespace
}  // namespace tcpx
