// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what both the host and the device run. NVRTC takes everything for the device's.
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#define P2P_ANYWHERE __host__ __device__
#else
#define P2P_ANYWHERE
#endif

/// Before a loop whose arrays are to stay in a device's registers.
#if defined(__CUDACC__)
#define P2P_UNROLL _Pragma("unroll")
#else
#define P2P_UNROLL
#endif
