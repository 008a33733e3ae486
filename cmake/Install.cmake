# find_package(uccl_p2p), pkg-config and headers.
