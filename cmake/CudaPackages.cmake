# CUDA without a toolkit, of the version that wheels need: the runtime and its headers from NVIDIA's Python packages
# nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12, kernels by NVRTC (src/kernels/CMakeLists.txt).
set(runtime ${P2P_CUDA_PACKAGES}/cuda_runtime)
file(STRINGS ${runtime}/include/cuda.h version REGEX "#define CUDA_VERSION ")
string(REGEX REPLACE ".* ([0-9]+)0([0-9])0$" "\\1.\\2" CUDAToolkit_VERSION "${version}")
if(CUDAToolkit_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "${runtime} is '${version}', and 12.8 is needed")
endif()
add_library(CUDA::cudart_static STATIC IMPORTED)
set_target_properties(CUDA::cudart_static PROPERTIES IMPORTED_LOCATION ${runtime}/lib/libcudart_static.a)
target_include_directories(CUDA::cudart_static INTERFACE ${runtime}/include ${P2P_CUDA_PACKAGES}/cuda_nvcc/include)
target_link_libraries(CUDA::cudart_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)
set(P2P_CUDA_LIBRARIES CUDA::cudart_static)
message(STATUS "CUDA ${CUDAToolkit_VERSION} from ${P2P_CUDA_PACKAGES}")
