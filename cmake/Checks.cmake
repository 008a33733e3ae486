# Targets over the whole tree: `lint` (preset lint), `coverage_report` (preset coverage).
add_custom_target(lint COMMAND ${PROJECT_SOURCE_DIR}/scripts/lint.sh ${PROJECT_BINARY_DIR}
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL VERBATIM)
add_custom_target(coverage_report
  COMMAND gcovr --root ${PROJECT_SOURCE_DIR} --filter src/ --exclude ".*_test\\.cc" --print-summary
    --html-details ${PROJECT_BINARY_DIR}/coverage.html ${PROJECT_BINARY_DIR}
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL VERBATIM)
