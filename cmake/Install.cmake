# find_package(uccl_p2p), pkg-config and headers.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/uccl_p2p)

install(TARGETS uccl_p2p_shared uccl_p2p_static EXPORT uccl_p2pTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT uccl_p2pTargets NAMESPACE uccl_p2p:: DESTINATION ${package_folder})

configure_package_config_file(cmake/uccl_p2pConfig.cmake.in ${PROJECT_BINARY_DIR}/uccl_p2pConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/uccl_p2pConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/uccl_p2pConfig.cmake ${PROJECT_BINARY_DIR}/uccl_p2pConfigVersion.cmake
  DESTINATION ${package_folder})

# Relative, so that an installed tree can be moved.
file(RELATIVE_PATH P2P_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(P2P_PC_CUDA "")
if(P2P_CUDA_LIBRARIES STREQUAL "CUDA::cudart_static")
  get_target_property(runtime CUDA::cudart_static IMPORTED_LOCATION)
  get_filename_component(runtime "${runtime}" DIRECTORY)
  set(P2P_PC_CUDA " -L${runtime} -lcudart_static -lrt")
endif()
foreach(package uccl_p2p tcpx_p2p)
  configure_file(cmake/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc @ONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/uccl_p2p.pc ${PROJECT_BINARY_DIR}/tcpx_p2p.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
