# Packages of the system only: nothing is fetched at configure time.
find_package(Threads REQUIRED)
find_package(tl-expected REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
if(P2P_TESTS)
  find_package(GTest REQUIRED)
endif()
