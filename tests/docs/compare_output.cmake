# cmake -DPROGRAM=... -DPAGE=... -P compare_output.cmake: fails unless PROGRAM prints exactly PAGE.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ ${PAGE} page)
if(NOT printed STREQUAL page)
  message(FATAL_ERROR "${PAGE} is not what ${PROGRAM} prints: build the target options_page")
endif()
