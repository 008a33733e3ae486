# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
PREFIX ?= /usr/local

.PHONY: demo build install wheels test test-all lint docs fuzz chaos stacks clean help

help:
	@echo "make demo   build, measure transfers between two processes of this machine, move tensors from Python"
	@echo "make build  the C++ libraries and programs, optimised, in build/install"
	@echo "make install PREFIX=FOLDER  the same into FOLDER (default /usr/local)"
	@echo "make test   unit, conformance and integration tests, the Python package's and NIXL's"
	@echo "make test-all  all tests: sanitizers, fuzzers, RDMA, wheels, lint and so on, too; 'make test PART=dev' only one part"
	@echo "make lint   static checks"
	@echo "make docs   the pages and the headers as HTML, in build/docs/html (needs doxygen)"
	@echo "make fuzz   every fuzzer for a minute"
	@echo "make chaos SECONDS=N  random trouble for so long (default 120); SEED=N, ONLY=cma; see tests/chaos/README.md"
	@echo "make stacks vLLM, Ray and torch.distributed with this package, from PyPI; 'make stacks ONLY=ray' one of them"
	@echo "make clean  remove what was built"

demo:
	@scripts/demo.sh

build:
	@scripts/setup.sh demo
	@bash -c '. scripts/steps.sh; use_compiler_cache; \
	  cmake --preset release -B build/install -DP2P_TESTS=OFF -DP2P_BENCH=OFF && cmake --build build/install'
	@echo "built in build/install; make install PREFIX=FOLDER puts it where other programs find it"

install: build
	@cmake --install build/install --prefix "$(PREFIX)"

test:
	@scripts/test.sh $(PART)

test-all:
	@scripts/test.sh all

lint:
	@scripts/test.sh lint

docs:
	@scripts/docs.py

wheels:
	@scripts/wheels.sh

fuzz:
	@scripts/test.sh fuzz

chaos:
	@CHAOS_SECONDS=$(SECONDS) CHAOS_SEED=$(SEED) CHAOS_ONLY=$(ONLY) scripts/test_chaos.sh

stacks:
	@scripts/stacks.sh $(ONLY)

clean:
	@rm -rf build
