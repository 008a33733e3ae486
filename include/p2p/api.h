// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the shared library exports; all else in it is hidden.
#define P2P_API __attribute__((visibility("default")))
