// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "p2p/result.h"

namespace p2p::cuda {

/// The driver's functions that the runtime has no equal for. Only for .cc files of this folder.
struct Driver {
  decltype(&cuCtxGetCurrent) get_current = nullptr;
  decltype(&cuCtxSetCurrent) set_current = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) primary_state = nullptr;
  decltype(&cuPointerGetAttributes) pointer_attributes = nullptr;
  decltype(&cuStreamGetCtx) stream_context = nullptr;
  decltype(&cuStreamIsCapturing) is_capturing = nullptr;
  decltype(&cuEventCreate) make_event = nullptr;
  decltype(&cuEventRecord) record_event = nullptr;
  decltype(&cuEventQuery) query_event = nullptr;
  decltype(&cuEventDestroy) destroy_event = nullptr;
  decltype(&cuStreamWriteValue32) write_value = nullptr;
  decltype(&cuThreadExchangeStreamCaptureMode) exchange_capture_mode = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuMemCreate) create_memory = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain_memory = nullptr;
  decltype(&cuMemRelease) release_memory = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) memory_properties = nullptr;
  decltype(&cuMemExportToShareableHandle) export_memory = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_memory = nullptr;
  decltype(&cuMemAddressReserve) reserve_addresses = nullptr;
  decltype(&cuMemAddressFree) free_addresses = nullptr;
  decltype(&cuMemMap) map_memory = nullptr;
  decltype(&cuMemUnmap) unmap_memory = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetHandleForAddressRange) handle_for_range = nullptr;  ///< null before CUDA 11.7
};

/// The driver if this process has loaded it by now, else null: then no pointer can be CUDA's.
const Driver* loaded_driver();

/// Loads it where that has not happened yet.
Result<const Driver*> load_driver();

}  // namespace p2p::cuda
