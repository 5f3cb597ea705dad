# The front door. Every target sets up what it needs, from nothing.
# Environment variables that change what Python or uv do are kept out, so that a run is the same everywhere.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONWARNINGS VIRTUAL_ENV
.DEFAULT_GOAL := help
.PHONY: help setup levels demo quick test test-all test-vm check check-types check-rest prose fix lines bench bench-peers docs site wheels doctor clean

BIN := .venv/bin
STYLE := src native tests tools demo bench examples
# In a checkout of someone else there is nowhere to keep pytest's cache.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile $(shell test -w . || echo -p no:cacheprovider)

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: ## everything that the other targets need
	@tools/bootstrap

levels: ## what the stronger levels run on: gVisor, QEMU and a kernel, Podman (as root, on Debian)
	@tools/bootstrap levels

demo: setup ## untrusted code repairs a real repository in a sandbox (ARGS=--json)
	@$(BIN)/python -m demo.run $(ARGS)

quick: setup ## a minute's worth of tests, for the files that differ from main (ARGS="-k name")
	@$(PYTEST) -m "not slow" $$($(BIN)/python -m tools.quick) $(ARGS)

test: setup ## all tests but the slow ones (ARGS="-k name")
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: setup ## all tests; in the virtual machine too, where there can be one
	@$(PYTEST) --hypothesis-profile=search $(ARGS)
	@$(BIN)/python -m tools.vm || [ $$? = 77 ]

test-vm: setup ## the jail under systemd and cgroup version 2, in an emulated machine: an hour (ARGS="--lane kvm": microVMs on KVM, 40 minutes)
	@$(BIN)/python -m tools.vm $(ARGS)

check: ## format, lint, types, architecture, generated code
	@tools/bootstrap check
	@$(MAKE) --no-print-directory --output-sync=line -j2 check-types check-rest

check-types:
	$(BIN)/pyright

check-rest:
	$(BIN)/ruff format --check --quiet $(STYLE)
	$(BIN)/ruff check --quiet $(STYLE)
	$(BIN)/lint-imports
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/guarantees.py --check
	$(BIN)/python tools/schema.py --check
	$(BIN)/python -m tools.rooms --check
	$(BIN)/python native/build.py --check
	$(BIN)/python -m tools.prose --check
	$(BIN)/pytest -q -p no:cacheprovider -m pure tests/style # `make test` runs the documents' examples

fix: setup ## whatever a tool can put right
	$(BIN)/ruff format --quiet $(STYLE)
	$(BIN)/ruff check --quiet --fix $(STYLE)
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/guarantees.py
	$(BIN)/python tools/schema.py
	$(BIN)/python -m tools.rooms

prose: ## what the English of docs, docstrings and comments does against the rules, by folder (ARGS="--list FOLDER")
	@tools/bootstrap check
	@$(BIN)/python -m tools.prose $(ARGS)

lines: setup ## lines of code by room, without blanks, comments, docstrings and generated files
	@$(BIN)/python -m tools.lines

bench: ## what it costs, beside what else there is (ARGS="--only cycle", ARGS=--peers)
	@tools/bootstrap bench
	@$(BIN)/python -m bench $(ARGS)

bench-peers: ## other people's sandboxes, for `make bench ARGS=--peers`
	@tools/bootstrap bench
	@$(BIN)/python -m bench.peers

docs: setup ## run the examples, follow the links
	$(PYTEST) -q tests/style

site: ## the documentation as a site in out/site; a broken link is an error
	@tools/bootstrap site
	@NO_MKDOCS_2_WARNING=1 .tools/site/bin/mkdocs build --quiet
	@echo out/site/index.html

wheels: ## the sdist, and wheels for x86_64 and aarch64, in out/dist
	@tools/bootstrap wheels
	@rm -rf out/dist
	@$(BIN)/python -m hatchling build -t sdist -d out/dist
	@PADDOCK_WHEEL_COMPILER=ziglang PADDOCK_WHEEL_ARCH=x86_64 $(BIN)/python -m hatchling build -t wheel -d out/dist
	@PADDOCK_WHEEL_COMPILER=ziglang PADDOCK_WHEEL_ARCH=aarch64 $(BIN)/python -m hatchling build -t wheel -d out/dist

doctor: setup ## what this machine can do, and what would fix the rest
	@$(BIN)/paddock doctor

clean: ## away with all that these targets made
	rm -rf .venv .tools out dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
