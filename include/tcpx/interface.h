// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#ifndef TCPX_INTERFACE_H
#define TCPX_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

/*
 * The plugin's own calls for those who drive it themselves. Every function returns 0, the plugin's code
 * (1 to 7), or -1 if no plugin is loaded or an argument is wrong; tcpx_last_error says more. The plugin's
 * rules hold: one thread at a time a comm, at most 16 requests a comm, tcpx_test on the oldest only, received
 * requests consumed in order and only once nothing reads the bytes any more.
 */
#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TCPX_API __attribute__((visibility("default")))
#else
#define TCPX_API
#endif

#define TCPX_HANDLE_BYTES 128
#define TCPX_PTR_HOST 1
#define TCPX_PTR_CUDA 2

struct tcpx_properties {
  const char* name;     /* never null; "" if the plugin gave none; lives as long as the process */
  const char* pci_path; /* likewise */
  uint64_t guid;
  int ptr_support; /* bits of TCPX_PTR_* */
  int speed;       /* Mbit/s */
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type; /* 1: UNPACK */
  int net_device_version;
};

/* A path, or a name by NCCL's rules; NULL or "": libnccl-net.so. Loading the same again is fine. */
TCPX_API int tcpx_load_plugin(const char* plugin_path);

/* Loads libnccl-net.so if nothing is loaded yet. Negative: none, see tcpx_last_error. */
TCPX_API int tcpx_get_device_count(void);
TCPX_API int tcpx_get_properties(int dev, struct tcpx_properties* properties);

/* handle: TCPX_HANDLE_BYTES, for one connection. */
TCPX_API int tcpx_listen(int dev, void* handle, void** listen_comm);

/* Call again with the same, unchanged handle buffer until *send_comm is not NULL. */
TCPX_API int tcpx_connect_v5(int dev, void* handle, void** send_comm, void** send_dev_handle);

/* Call again until *recv_comm is not NULL. *recv_dev_handle, if not NULL, is memory of 32 bytes to be filled;
 * if NULL, it is set to memory that lives until tcpx_close_recv. */
TCPX_API int tcpx_accept_v5(void* listen_comm, void** recv_comm, void** recv_dev_handle);

TCPX_API int tcpx_reg_mr(void* comm, void* data, size_t size, int type, void** mhandle);
TCPX_API int tcpx_dereg_mr(void* comm, void* mhandle);

/* 0 with *request NULL, of a send as of a receive: the plugin cannot take it now, call again later. */
TCPX_API int tcpx_isend(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);

/* n must be 1. */
TCPX_API int tcpx_irecv(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                        void** request);

/* size may be NULL; plugins need not write it. */
TCPX_API int tcpx_test(void* request, int* done, int* size);

/* Of a receive into CUDA memory that is done, unless its device is of type UNPACK: its bytes may be read only
 * once *request is done as well; NULL there: at once. n must be 1. */
TCPX_API int tcpx_iflush(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
TCPX_API int tcpx_irecv_consumed(void* recv_comm, int n, void* request);

TCPX_API int tcpx_close_send(void* send_comm);
TCPX_API int tcpx_close_recv(void* recv_comm);
TCPX_API int tcpx_close_listen(void* listen_comm);

/* The last failure on this thread, one sentence; "" if none. */
TCPX_API const char* tcpx_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
