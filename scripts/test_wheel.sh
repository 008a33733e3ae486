#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Builds and uses one wheel as `make wheels` does all of them, and uses it on a machine that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of the version that the bare machine will have. If the environment of the other tests is of that version, it is built
# there: the compiler cache has it then.
python=/usr/bin/python3
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
unset UCCL_P2P_VENV
minor() { "$1" -c 'import sys; print(sys.version_info[1])'; }
if [ -x "$venv/bin/python" ] && [ "$(minor "$venv/bin/python")" = "$(minor $python)" ]; then
  python=$venv/bin/python
  export UCCL_P2P_VENV=$venv
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts/wheels.sh --out "$folder/out" "$python"
wheel=$(ls "$folder"/out/*.whl)

echo "a binary that needs more is found:"
bad=$folder/bad/$(basename "$wheel")
mkdir "$folder/bad"
cp "$wheel" "$bad"
libssl=$(realpath "$(g++ -print-file-name=libssl.so)")
"$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "a").write(sys.argv[2], "uccl/lib/libssl.so")' "$bad" "$libssl"
if said=$(tests/install/wheel_contents.py "$bad"); then
  echo "it was not: $said"
  exit 1
fi
grep 'uccl/lib/libssl.so needs libcrypto' <<<"$said"
grep 'uccl/lib/libssl.so: a binary too many' <<<"$said"

echo "kernels that only drivers of CUDA 13 read are found:"
cp "$wheel" "$bad"
"$python" -W ignore - "$bad" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "a") as archive:
    code = archive.read("uccl/bin/tcpx")
    archive.writestr("uccl/bin/tcpx", code.replace(b"\x7fELF\2\1\1\x33\7", b"\x7fELF\2\1\1\x41\x08"))
END
if said=$(tests/install/wheel_contents.py --cuda12 "$bad"); then
  echo "they were not: $said"
  exit 1
fi
grep 'uccl/bin/tcpx has kernels of' <<<"$said"

echo "on a bare machine:"
timeout 300 tests/install/bare_root.sh "$wheel"
