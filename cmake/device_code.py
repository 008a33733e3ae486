#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Usage: device_code.py FOLDER SOURCE INCLUDE OUT: compiles CUDA device code without nvcc.

FOLDER holds NVIDIA's packages nvidia-cuda-nvrtc-cu12 and nvidia-nvfatbin-cu12 (site-packages/nvidia). OUT gets machine
code for ARCHITECTURES and PTX for GPUs that are newer, in one image of which a driver takes what fits.
"""

import ctypes
import pathlib
import sys

# Machine code runs on later GPUs of the same major version, too.
ARCHITECTURES = (80, 90, 100, 120)
PTX = 80

# NVRTC brings no standard library; this is what the kernels use of it.
HEADERS = {
    "cstddef": "#pragma once\nnamespace std { using size_t = decltype(sizeof 0); enum class byte : unsigned char {}; }",
    "cstdint": "#pragma once\nnamespace std { using uint32_t = unsigned; using uint64_t = unsigned long; }",
}


class Library:
    """Functions that return 0 or else a number for which there is a text."""

    def __init__(self, path, prefix):
        self._library = ctypes.CDLL(str(path))
        self._prefix = prefix

    def __getattr__(self, name):
        function = getattr(self._library, self._prefix + name)

        def call(*arguments):
            if status := function(*arguments):
                text = getattr(self._library, self._prefix + "GetErrorString")
                text.restype = ctypes.c_char_p
                raise SystemExit(f"device_code: {self._prefix}{name}: {text(status).decode()}")

        return call


def strings(texts):
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


class Compiler:
    def __init__(self, folder, source, include):
        self._nvrtc = Library(folder / "cuda_nvrtc/lib/libnvrtc.so.12", "nvrtc")
        self._source = source
        self._include = include

    def compile(self, target, kind):
        """The bytes of `kind` (CUBIN, PTX) for `target` (sm_80, compute_80)."""
        program = ctypes.c_void_p()
        names = strings(HEADERS)
        text = self._source.read_bytes()
        self._nvrtc.CreateProgram(ctypes.byref(program), text, self._source.name.encode(), len(HEADERS),
                                  strings(HEADERS.values()), names)  # fmt: skip
        options = strings([f"--gpu-architecture={target}", "--std=c++20", "-default-device", f"--include-path={self._include}"])
        try:
            self._nvrtc.CompileProgram(program, len(options), options)
        except SystemExit as error:
            raise SystemExit(f"{error}\n{self._bytes(program, 'ProgramLog').decode()}") from None
        return self._bytes(program, kind)

    def _bytes(self, program, what):
        size = ctypes.c_size_t()
        getattr(self._nvrtc, f"Get{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._nvrtc, f"Get{what}")(program, buffer)
        return buffer.raw


def image(folder, compiler):
    fatbin = Library(folder / "nvfatbin/lib/libnvfatbin.so.12", "nvFatbin")
    handle = ctypes.c_void_p()
    options = strings(["-64", "-compress=false"])
    fatbin.Create(ctypes.byref(handle), options, len(options))
    for number in ARCHITECTURES:
        code = compiler.compile(f"sm_{number}", "CUBIN")
        fatbin.AddCubin(handle, code, ctypes.c_size_t(len(code)), str(number).encode(), b"copy")
    code = compiler.compile(f"compute_{PTX}", "PTX")
    fatbin.AddPTX(handle, code, ctypes.c_size_t(len(code)), str(PTX).encode(), b"copy", b"")
    size = ctypes.c_size_t()
    fatbin.Size(handle, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    fatbin.Get(handle, buffer)
    return buffer.raw


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, source, include, out = map(pathlib.Path, sys.argv[1:])
    out.write_bytes(image(folder, Compiler(folder, source, include)))


if __name__ == "__main__":
    main()
