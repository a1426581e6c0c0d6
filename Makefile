# What a person or CI runs. On a fresh Debian 12, as root, each goal first installs what it needs;
# the next time it finds everything there and starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# Where tc, nft and iptables are; "su" without "-" keeps the PATH of a user, which lacks it.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# bcc belongs to the distribution's Python, so that is the one the environment is made of.
SYSTEM_PYTHON := /usr/bin/python3
VENV := .venv
PYTHON := $(VENV)/bin/python
TESTS := $(addprefix tests/,rows specification api deploy packets lab)
PYTEST := $(PYTHON) -m pytest -p bpfsvc.lab.pytest_plugin

# What the node needs, what the lab's nodes need (tc, ss and ip; a CNI's masquerade), what lint needs.
PACKAGES := python3-bpfcc python3-venv iproute2 nftables iptables ipset openssl clang-format
# What the benchmark and the tests need beside: a C compiler for the load tool, the other modes' tools,
# and another's view of what is attached and loaded.
COMPARED := gcc libc6-dev ethtool ipvsadm bpftool
# What another kernel needs to be tried.
EMULATOR := qemu-system-x86 kmod
# What the image is built and run with, without any registry.
CONTAINERS := buildah podman runc mmdebstrap openssl
missing = $(strip $(shell for package in $(1); do \
	dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || echo $$package; \
	done))

KERNEL := build/kernels/debian-12

C_SOURCES := $(wildcard bpf/*.c bpf/*.h bpfsvc/bench/load/*.c bpfsvc/bench/load/*.h)

.PHONY: help demo test slow kernels image image-test bench lint format clean
.PHONY: packages compared emulator containers

help:
	@echo 'make demo    two nodes, four pods and a client: every kind of traffic, a verdict each (30 s)'
	@echo 'make test    lint, then all tests but the slow ones'
	@echo 'make slow    the slow tests, those of "make kernels" among them'
	@echo 'make kernels Linux 6.1 in an emulated machine: the demo, and tests of packets and of the lab'
	@echo 'make image   the container image, in storage of its own'
	@echo 'make image-test  the image, run in a lab as the DaemonSet of deploy/ says'
	@echo 'make bench   bpfsvc against kube-proxy and against nothing, measured (ARGS=--quick: 3 min)'
	@echo 'make lint    ruff, mypy, import-linter, clang-format'
	@echo 'make format  let ruff and clang-format rewrite the sources'
	@echo 'make clean   remove everything made here'

demo: $(VENV)/installed-demo
	@$(PYTHON) -m bpfsvc.demo $(ARGS)

test: lint | compared
	@$(PYTEST) -m 'not slow' $(TESTS) $(ARGS)

slow: $(VENV)/installed-test $(KERNEL)/version | compared
	@$(PYTEST) -m slow $(TESTS) tests/kernels $(ARGS)

kernels: $(VENV)/installed-test $(KERNEL)/version
	@$(PYTEST) tests/kernels $(ARGS)

image: $(VENV)/installed-test | containers
	PYTHON=$(PYTHON) tests/image/build.sh build/image

image-test: image
	@$(PYTEST) -s tests/image $(ARGS)

bench: $(VENV)/installed-bench | compared
	@$(PYTHON) -m bpfsvc bench $(ARGS)

lint: $(VENV)/installed-test
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports
	clang-format --dry-run -Werror $(C_SOURCES)

format: $(VENV)/installed-test
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	clang-format -i $(C_SOURCES)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packages: looked for every time, for the checkout may have moved to another machine.
packages: ; @$(call install,$(call missing,$(PACKAGES)))
compared: packages ; @$(call install,$(call missing,$(COMPARED)))
emulator: packages ; @$(call install,$(call missing,$(EMULATOR)))
containers: packages ; @$(call install,$(call missing,$(CONTAINERS)))

define install
	missing='$(1)'; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then \
			echo "missing Debian packages: $$missing (run make as root, or install them)" >&2; exit 1; \
		fi; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update; \
		apt-get -qq install --no-install-recommends $$missing; \
	fi
endef

# Debian 12's own kernel, unpacked here; nothing of it is installed.
$(KERNEL)/version: tests/kernels/fetch.sh tests/kernels/init.sh | emulator
	tests/kernels/fetch.sh $(@D)

$(PYTHON): | packages
	$(SYSTEM_PYTHON) -m venv --system-site-packages $(VENV)

$(VENV)/installed-%: setup.cfg pyproject.toml | packages $(PYTHON)
	$(PYTHON) -m pip --quiet --disable-pip-version-check install --editable '.[$*]'
	@touch $@
