# p2p_warnings(TARGET): the project's own warning level; errors only where P2P_WERROR is on.
function(p2p_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>
    # GCC's flow analysis sees overflows in the standard library's strings and vectors where there are none.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${P2P_WERROR}>>:-Werror>)
endfunction()

set(P2P_TEST_OPTIONS "" CACHE STRING "Options for compiling what only tests (presets set them)")

# p2p_test_options(TARGET): of a test program, where the time to compile counts for more than the time to run.
function(p2p_test_options target)
  p2p_warnings(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${P2P_TEST_OPTIONS}>)
endfunction()
