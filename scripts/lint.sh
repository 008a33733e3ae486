#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/lint.sh [BUILD_FOLDER]
# All static checks; BUILD_FOLDER is one that the preset `lint` configured (made if absent). Every check runs,
# also after one that failed; the exit status is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/lint}
failed=()

# Unlike in scripts/steps.sh a failed check shows all that it found, and its commands are functions.
check() {
  local name=$1 log start=$SECONDS
  shift
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    printf '  %-12s ok      %4d s\n' "$name" $((SECONDS - start))
  else
    printf '  %-12s FAILED  %4d s\n' "$name" $((SECONDS - start))
    head -n 500 "$log"
    failed+=("$name")
  fi
  rm -f "$log"
}

sources() {
  git ls-files --cached --others --exclude-standard "$@" | while read -r f; do if [ -f "$f" ]; then echo "$f"; fi; done
}

check_format() { sources '*.cc' '*.h' '*.cu' '*.cuh' | xargs -r clang-format-19 --dry-run -Werror; }

check_spelling() {
  sources '*.cc' '*.h' '*.cu' '*.md' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' Makefile |
    xargs -r codespell --ignore-words scripts/spelling_allowed.txt
}

check_shell() {
  sources '*.sh' scripts .ci tests | xargs -r grep -lE '^#!.*[/ ](ba)?sh$' | xargs -r shellcheck -x
}

# `--texts`: what needs no compiler.
texts=false
if [ "$build" = --texts ]; then
  texts=true
else
  [ -f "$build/compile_commands.json" ] || cmake --preset lint -B "$build" >/dev/null || exit 1
fi
echo "lint:"
check layers python3 scripts/check_layers.py
check sizes python3 scripts/check_sizes.py
check docs python3 scripts/check_docs.py
check format check_format
check spelling check_spelling
check shell check_shell
check pages scripts/docs.py
if ! $texts; then
  check clang-tidy python3 scripts/tidy.py "$build"
fi
if [ ${#failed[@]} -ne 0 ]; then
  echo "lint: FAILED: ${failed[*]}"
  exit 1
fi
echo "lint: clean"
