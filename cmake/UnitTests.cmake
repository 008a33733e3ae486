# Tests that lie beside the code: GoogleTest over the internals, one CTest test a case.
if(P2P_TESTS)
  include(GoogleTest)
endif()

# p2p_precompiled(TARGET): GoogleTest's headers are read once for all programs: a third of what compiling a test takes.
# TARGET is a program that has p2p_test_options and no options of its own.
option(P2P_PRECOMPILED "Precompile GoogleTest's headers (presets set it)" OFF)
function(p2p_precompiled target)
  if(NOT P2P_PRECOMPILED)
    return()
  endif()
  if(NOT TARGET p2p_test_headers)
    set(main ${PROJECT_BINARY_DIR}/test_headers.cc)
    file(CONFIGURE OUTPUT ${main} CONTENT "int main() {}\n" @ONLY)
    add_executable(p2p_test_headers ${main})
    target_link_libraries(p2p_test_headers PRIVATE GTest::gmock Threads::Threads)
    p2p_test_options(p2p_test_headers)
    target_precompile_headers(p2p_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM p2p_test_headers)
  # The compiler cache takes no notice of what it does not see in them (scripts/steps.sh).
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

# Unit tests that need GPUs. Where these are emulated (tests/softgpu) they have two; other tests see none.
set(P2P_GPU_UNIT_TESTS "")
if(P2P_SOFT_GPU)
  set(P2P_GPU_UNIT_TESTS drivers_cuda_test copy_test copier_test job_test staging_pool_test lifetime_test unpacker_test
    digester_test cuda_ipc_test cuda_ipc_channel_test cuda_ipc_open_links_test cuda_ipc_neighbours_test tcp_device_memory_test)
  add_custom_target(softgpu_tests)
endif()

# What emulated GPUs leave out: GiB of memory, and with a sanitizer what tests do on one GPU, or by tcp, that
# they also do between two by cuda_ipc, and by the best route what they also do by its transport.
set(P2P_NO_SOFT_GPU "-*Gi??byte*:CopierEnd.*")
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  string(APPEND P2P_NO_SOFT_GPU ":*same_gpu:*tcp_two_gpus:PeerOnDevice/*/0:Over/GpuToHost.*/best")
endif()

# p2p_soft_gpu_test(NAME PROGRAM [ARGUMENTS argument...] [ENVIRONMENT setting...]): softgpu.NAME, with two emulated GPUs;
# where there are none, nothing. The target `softgpu_tests` builds the programs of all. LONG: too long for every run of
# the thread sanitizer; those have the label softgpu_long there, and scripts/softgpu.sh runs them.
function(p2p_soft_gpu_test name program)
  if(NOT P2P_SOFT_GPU)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 2 arg "LONG" "" "ARGUMENTS;ENVIRONMENT")
  set(label softgpu)
  if(P2P_THREADS_ONLY AND (arg_LONG OR name MATCHES "^(copy|digester|unpacker|cuda_ipc|tcp_device_memory)_test$"))
    set(label softgpu_long)
  endif()
  add_dependencies(softgpu_tests ${program})
  add_test(NAME softgpu.${name} COMMAND ${program} ${arg_ARGUMENTS})
  set_tests_properties(softgpu.${name} PROPERTIES TIMEOUT 1200 COST 100 LABELS ${label}
    ENVIRONMENT "SOFTGPU_DEVICES=2;UCCL_P2P_LOG_LEVEL=error;${arg_ENVIRONMENT}")
endfunction()

# p2p_unit_test(NAME source...): the program NAME.
function(p2p_unit_test name)
  if(NOT P2P_TESTS)
    return()
  endif()
  add_executable(${name})
  p2p_sources(${name} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)  # support/
  target_link_libraries(${name} PRIVATE p2p_unit_support p2p_internal GTest::gmock_main)
  p2p_test_options(${name})
  p2p_precompiled(${name})
  if(name IN_LIST P2P_GPU_UNIT_TESTS)
    # What they say where there is no GPU, at once; then without what wants the memory and the speed of a real one.
    add_test(NAME ${name}.no_gpu COMMAND ${name})
    set_tests_properties(${name}.no_gpu PROPERTIES TIMEOUT 120 LABELS unit)
    p2p_soft_gpu_test(${name} ${name} ARGUMENTS --gtest_filter=${P2P_NO_SOFT_GPU})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 120 LABELS unit)
  endif()
  p2p_names_of_tests(${name} ${ARGN})
endfunction()

# p2p_folder_tests(NAME [FOLDER folder] [EXCEPT test...]): every *_test.cc of the folder (else this one and those below
# without a CMakeLists.txt) is part of the one program NAME. p2p_folder_tests(PREFIX EACH ...): each is one of its own,
# for those that scripts run alone: PREFIX and the file's name. A test that comes or goes needs no line anywhere. EXCEPT
# names files without .cc. ONE_THREAD: neither the tests nor what they test have a second one.
function(p2p_folder_tests name)
  if(NOT P2P_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "EACH;ONE_THREAD" FOLDER EXCEPT)
  if(arg_ONE_THREAD AND P2P_THREADS_ONLY)
    return()
  endif()
  set(here ${CMAKE_CURRENT_SOURCE_DIR})
  set(folders ${arg_FOLDER})
  if(NOT folders)
    p2p_folders(folders)
  endif()
  set(tests "")
  foreach(folder IN LISTS folders)
    file(GLOB found CONFIGURE_DEPENDS RELATIVE ${here} ${here}/${folder}/*_test.cc)
    list(APPEND tests ${found})
  endforeach()
  list(TRANSFORM arg_EXCEPT APPEND .cc)
  list(REMOVE_ITEM tests ${arg_EXCEPT})
  if(arg_EACH)
    foreach(test IN LISTS tests)
      cmake_path(GET test STEM stem)
      string(REGEX REPLACE "^${name}" "" stem "${stem}")
      p2p_unit_test(${name}${stem} ${test})
    endforeach()
  elseif(tests)
    p2p_unit_test(${name} ${tests})
  endif()
endfunction()

# p2p_names_of_tests(PROGRAM source...): so that `--target NAME_test` is known for each NAME_test.cc among them.
function(p2p_names_of_tests program)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM stem)
    if(stem MATCHES "_test$")
      set_property(GLOBAL APPEND PROPERTY P2P_TEST_NAMES ${stem})
      set_property(GLOBAL APPEND PROPERTY P2P_PROGRAMS_OF_${stem} ${program})
    endif()
  endforeach()
endfunction()

# After all folders: a target for each name that no program has. Files of one name in several folders are all built.
function(p2p_targets_of_test_names)
  get_property(names GLOBAL PROPERTY P2P_TEST_NAMES)
  list(REMOVE_DUPLICATES names)
  foreach(name IN LISTS names)
    get_property(programs GLOBAL PROPERTY P2P_PROGRAMS_OF_${name})
    list(REMOVE_DUPLICATES programs)
    list(REMOVE_ITEM programs ${name})
    if(NOT TARGET ${name})
      add_custom_target(${name} DEPENDS ${programs})
    elseif(programs)
      add_dependencies(${name} ${programs})
    endif()
  endforeach()
endfunction()
