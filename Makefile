# Everything a contributor runs. `make` alone lists it.

GO       ?= go
PREFIX   ?= /usr/local
DESTDIR  ?=
# Where mount(8) looks for helpers. It looks nowhere else, so a helper that is installed in a home directory is not found.
HELPERDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
UNITDIR   ?= $(PREFIX)/lib/systemd
FUZZTIME ?= 10s
BIN      ?= bin
# Packages tested at once, other than those of TIMED, which measure time and are tested one after the other.
TESTP    ?= 2
TIMED    := ./host/daemon ./fuse ./integration ./integration/harness/gittest
# Tests of a package that run at once, of those that are marked as parallel: most of them wait for servers, clocks and other processes.
PARALLEL ?= 4
# Longest run of the tests of a package, on a slow and busy machine too. That of integration takes 10 to 60 minutes.
TESTTIME ?= 90m
# Tests of integration for `make race`: reads, writes, git, sessions, follow, switch and takeover. The others are left out since the
# race detector makes the daemon slower and larger, and they hold it to limits of time, memory and processes.
RACETESTS ?= TestListStatusPrefetch|TestWritesAreLazy|TestFollow|TestSwitchFar|TestModelsAtOnce|TestGrepOfEverything|TestSessionResumesElsewhere|TestSessionsShareASessionRemote|TestAdoptAndMerge|TestCommandsUnderKills|TestMCP|TestEveryKindOfRef|TestManifestsComeFirst|TestServerOutlivesKills|TestServerRefusesOversizeBodies
# -count=1 below: the cache of test results does not know that integration tests depend on the command they build.
# Go flags for `make test`, such as -run TestX.
TESTFLAGS ?=

# safe.directory: a checkout may belong to another user than the one who builds it.
VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git -c safe.directory='*' rev-parse HEAD 2>/dev/null)
# Time of the commit, in seconds since 1970: the only time in what is built (https://reproducible-builds.org/specs/source-date-epoch).
export SOURCE_DATE_EPOCH ?= $(shell git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || echo 0)
STAMP   := -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(shell date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ)

# One set of flags for all that is built, checked and tested: Go compiles everything once more for each other set.
# -w: the programs of tests are linked faster without tables for debuggers.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -ldflags=-w)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-long test-packages race race-packages lint bench bench-server git-suite ltp cluster-test fuzz install uninstall systemd monitoring-test dist dist-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what is missing of git, git-lfs, fuse3, fio, PostgreSQL and openssh-server (needs root or sudo if anything is)
	@scripts/setup.sh

build: ## build bin/artifactfs and, beside it, the same with the server, the hook for git before 2.55, and the CSI driver
	$(GO) build -buildvcs=false -tags noserver -ldflags "-s -w $(STAMP)" -o bin/artifactfs ./cmd/artifactfs
	$(GO) build -buildvcs=false -tags '' -ldflags "-s -w $(STAMP)" -o bin/artifactfs-server ./cmd/artifactfs
	$(GO) build -buildvcs=false -ldflags "-s -w" -o bin/artifactfs-fsmonitor ./cmd/artifactfs-fsmonitor
	$(GO) build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o bin/artifactfs-csi ./cmd/artifactfs-csi

demo: ## mount this checkout's history over loopback, with timings (REMOTE=url: mount that)
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory build
	@GO="$(GO)" REMOTE="$(REMOTE)" scripts/demo.sh

test: setup lint ## lint and all tests, real mounts included (TESTFLAGS="-run X", SCRATCH=no: on the disk)
	@scripts/scratch.sh $(MAKE) --no-print-directory test-packages

# Random tests with more steps, kills and rounds than `make test` has time for; each prints its seed.
LONG := AFS_MODEL_STEPS=30000 AFS_MONITOR_STEPS=1500 AFS_SERVER_KILLS=200 AFS_SERVER_PUSHES=46 AFS_TAKEOVER_KILLS=60 \
	AFS_TAKEOVER_ROUNDS=60 AFS_SESSION_KILLS=60 AFS_EVERY_FAULT=1
LONGTESTS := Model|Outlive|Kill|Fault|TakeOver|Takeover|TestStatusTellsEveryChange|Crash|Cut

test-long: setup ## the random tests and fault loops alone, with many more rounds (hours; TESTFLAGS="-run X")
	@$(LONG) TESTFLAGS='-run $(LONGTESTS) $(TESTFLAGS)' scripts/scratch.sh $(MAKE) --no-print-directory TESTTIME=6h test-packages

test-packages: # lint has run
	@status=0; export AFS_SKIPPED=$$(mktemp); test="$(GO) test -buildvcs=false -vet=off -count=1 -parallel $(PARALLEL) -timeout $(TESTTIME) $(TESTFLAGS)"; \
	scripts/test-again.sh $$test -p $(TESTP) -- $$($(GO) list ./... | grep -v $(foreach p,$(TIMED),-e '$(p:./%=/%)$$')) || status=1; \
	for p in $(TIMED); do scripts/test-again.sh $$test -- $$p || status=1; done; \
	cat $$AFS_SKIPPED >&2; rm -f $$AFS_SKIPPED; exit $$status

race: ## tests with the race detector: packages that measure no time, and some tests of whole mounts (needs gcc)
	@scripts/setup.sh race
	@scripts/scratch.sh $(MAKE) --no-print-directory race-packages

race-packages: export CGO_ENABLED = 1
race-packages:
	@status=0; test="$(GO) test -race -buildvcs=false -vet=off -count=1 -timeout $(TESTTIME) $(TESTFLAGS)"; \
	$$test -p $(TESTP) $$($(GO) list ./... | grep -v $(foreach p,$(TIMED),-e '$(p:./%=/%)$$')) || status=1; \
	$$test -run '^($(RACETESTS))$$' ./integration || status=1; exit $$status

lint: ## gofmt, go vet, staticcheck (the version that go.mod names), and the structure of the packages
	@bad=$$(find . -name '*.go' -not -path './.*' | xargs gofmt -l); if [ -n "$$bad" ]; then echo "not as gofmt writes it:"; echo "$$bad"; exit 1; fi
	$(GO) vet -buildvcs=false ./...
	$(GO) vet -buildvcs=false -tags noserver ./cmd/artifactfs
	$(GO) test -buildvcs=false ./internal/arch
	GOFLAGS="$$($(GO) env GOFLAGS) -buildvcs=false" $(GO) tool staticcheck ./...
	GOFLAGS="$$($(GO) env GOFLAGS) -buildvcs=false" $(GO) tool staticcheck -tags noserver ./cmd/artifactfs

bench: setup build ## compare with git clone in its three forms (BENCH="flags REPOSITORY.git ...")
	$(GO) build -buildvcs=false -o bin/gitserve ./integration/harness/gittest/gitserve
	$(GO) run -buildvcs=false ./integration/harness/bench $(BENCH)

bench-server: setup build ## compare serve with gitea and git http-backend (BENCH="-gitea DIR -large REPOSITORY.git REPOSITORY.git ...")
	$(GO) run -buildvcs=false ./integration/harness/serverbench $(BENCH)

git-suite: build ## run git's own tests in a mount (GIT_SRC=directory of git's source, SUITE="t1* t3200-*")
	@scripts/git-suite.sh "$(GIT_SRC)" $(SUITE)

ltp: build ## run the Linux Test Project's tests of files in a mount (LTP_SRC=directory of its source, SUITE="link* statx01"; root)
	@scripts/ltp.sh "$(LTP_SRC)" $(SUITE)

cluster-test: ## run the tests that need a Kubernetes cluster (root; builds Kubernetes once; TESTFLAGS="-run TestX")
	@GO="$(GO)" scripts/cluster-test.sh -timeout $(TESTTIME) $(TESTFLAGS) ./integration/harness/cluster ./integration/cluster

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@scripts/fuzz.sh "$(FUZZTIME)"

# The program that writes completions and manual pages; another one than BIN's where that is for another architecture.
PROGRAM ?= $(BIN)/artifactfs
MANDIR   = $(PREFIX)/share/man/man1
# $(call put,MODE,FILE): a file from standard input.
put = install -D -m $(1) /dev/stdin $(DESTDIR)$(2)
installed = bin/artifactfs bin/artifactfs-server bin/artifactfs-fsmonitor bin/artifactfs-csi \
	share/bash-completion/completions/artifactfs share/zsh/site-functions/_artifactfs share/fish/vendor_completions.d/artifactfs.fish
shared = systemd/srv-app.mount systemd/srv-app.automount container/artifactfs-hook container/with-fuse \
	container/Containerfile container/Containerfile.node container/Containerfile.user container/Containerfile.server container/README.md

install: build ## install command, mount helper, units, manual pages, completions and contrib below PREFIX (/usr/local)
	install -D -m 755 $(BIN)/artifactfs-server $(DESTDIR)$(PREFIX)/bin/artifactfs-server
	install -D -m 755 $(BIN)/artifactfs $(DESTDIR)$(PREFIX)/bin/artifactfs
	install -D -m 755 $(BIN)/artifactfs-fsmonitor $(DESTDIR)$(PREFIX)/bin/artifactfs-fsmonitor
	install -D -m 755 $(BIN)/artifactfs-csi $(DESTDIR)$(PREFIX)/bin/artifactfs-csi
	install -d $(DESTDIR)$(HELPERDIR)
	ln -sfn $(PREFIX)/bin/artifactfs $(DESTDIR)$(HELPERDIR)/mount.fuse.artifactfs
	ln -sfn $(PREFIX)/bin/artifactfs $(DESTDIR)$(HELPERDIR)/umount.fuse.artifactfs
	sed 's|@BINDIR@|$(PREFIX)/bin|g' contrib/systemd/artifactfs.service | $(call put,644,$(UNITDIR)/system/artifactfs.service)
	sed 's|@BINDIR@|$(PREFIX)/bin|g' contrib/systemd/artifactfs-server.service | $(call put,644,$(UNITDIR)/system/artifactfs-server.service)
	sed 's|@BINDIR@|$(PREFIX)/bin|g' contrib/systemd/user/artifactfs.service | $(call put,644,$(UNITDIR)/user/artifactfs.service)
	$(PROGRAM) completion bash | $(call put,644,$(PREFIX)/share/bash-completion/completions/artifactfs)
	$(PROGRAM) completion zsh | $(call put,644,$(PREFIX)/share/zsh/site-functions/_artifactfs)
	$(PROGRAM) completion fish | $(call put,644,$(PREFIX)/share/fish/vendor_completions.d/artifactfs.fish)
	d=$$(mktemp -d) && $(PROGRAM) man $$d && install -d $(DESTDIR)$(MANDIR) && install -m 644 $$d/* $(DESTDIR)$(MANDIR); s=$$?; rm -rf $$d; exit $$s
	for f in contrib/systemd/examples/* contrib/container/*; do d=$${f#contrib/}; d=$${d%%/*}; m=644; [ ! -x $$f ] || m=755; \
		install -D -m $$m $$f $(DESTDIR)$(PREFIX)/share/artifactfs/$$d/$${f##*/} || exit; done

uninstall: ## remove what install put there, and nothing else
	cd $(DESTDIR)/ && rm -f $(addprefix .$(PREFIX)/,$(installed)) $(addprefix .$(PREFIX)/share/artifactfs/,$(shared)) \
		.$(HELPERDIR)/mount.fuse.artifactfs .$(HELPERDIR)/umount.fuse.artifactfs \
		.$(UNITDIR)/system/artifactfs.service .$(UNITDIR)/system/artifactfs-server.service .$(UNITDIR)/user/artifactfs.service .$(MANDIR)/artifactfs.1 .$(MANDIR)/artifactfs-*.1
	cd $(DESTDIR)/ && for d in systemd container ''; do rmdir .$(PREFIX)/share/artifactfs/$$d 2>/dev/null || true; done

systemd: build ## try the units under a real systemd, in namespaces (needs root)
	$(GO) test -buildvcs=false -count=1 -v -run 'TestUnits' ./integration

monitoring-test: ## test alert rules and dashboard with a real Prometheus, downloaded if it is not installed (needs root)
	@GO="$(GO)" scripts/monitoring.sh

dist: ## write packages (tar.gz, deb, rpm, image archive) for amd64 and arm64, checksums and module lists to dist/
	@GO="$(GO)" VERSION="$(VERSION)" STAMP="$(STAMP)" scripts/dist.sh dist

dist-test: ## install, upgrade and remove the Debian package in a root of its own, with a mount in use (needs root)
	@scripts/dist-test.sh

clean: ## remove what was built
	rm -rf bin dist
