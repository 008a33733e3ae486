// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Prints docs/options.md from the library's own table.
#include <cstdio>

#include "p2p/options.h"

int main() {
  std::puts(
      "# Options\n"
      "\n"
      "Generated from the table in `src/api/engine_variables.cc` (`cmake --build --preset dev --target "
      "options_page`);\n"
      "a test compares the two.\n"
      "\n"
      "Every option is a field of `p2p::Options` (`include/p2p/options.h`) with a default.\n"
      "`Options::from_environment()` overrides the defaults with the variables below; the Python package and "
      "the\n"
      "tools start from it. White space around a value is ignored, and an empty variable counts as unset. A "
      "value\n"
      "that cannot be read is an error that names the variable: it is never ignored. Variables whose names "
      "do not\n"
      "begin with `UCCL_P2P_` belong to other programs; those that do win over them.\n"
      "\n"
      "| variable | default | meaning |\n"
      "| --- | --- | --- |");
  for (const p2p::OptionRow& row : p2p::option_rows()) {
    const char* mark = row.default_value.empty() ? "" : "`";
    std::printf("| `%s` | %s%s%s | %s |\n", row.variable, mark, row.default_value.c_str(), mark, row.meaning);
  }
  return std::ferror(stdout) == 0 ? 0 : 1;
}
