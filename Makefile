# Everything a contributor runs. `make` alone lists it.

GO       ?= go
PREFIX   ?= /usr/local
DESTDIR  ?=
FUZZTIME ?= 10s
# Packages tested at once. Tests of mounts measure time and wait for the kernel: one after the other, by default.
TESTP    ?= 1
TESTTIME ?= 15m
# -count=1 below: the cache of test results does not know that integration tests depend on the command they build.
# Go flags for `make test`, such as -run TestX or -race.
TESTFLAGS ?=

# safe.directory: a checkout may belong to another user than the one who builds it.
VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test lint bench git-suite fuzz install uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what is missing of git, git-lfs, fuse3, fio and openssh-server (needs root or sudo if anything is)
	@scripts/setup.sh

build: ## build bin/artifactfs and, beside it, the hook for git before 2.55
	CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/artifactfs ./cmd/artifactfs
	CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags "-s -w" -o bin/artifactfs-fsmonitor ./cmd/artifactfs-fsmonitor

demo: setup build ## mount this checkout's history over loopback, with timings (REMOTE=url: mount that)
	@GO="$(GO)" REMOTE="$(REMOTE)" scripts/demo.sh

test: setup ## go vet and all tests, real mounts included (TESTFLAGS="-run X -race")
	$(GO) vet -buildvcs=false ./...
	$(GO) test -buildvcs=false -count=1 -p $(TESTP) -timeout $(TESTTIME) $(TESTFLAGS) ./...

lint: ## gofmt, go vet, the import graph, and staticcheck where it is installed
	@bad=$$(find . -name '*.go' -not -path './.*' | xargs gofmt -l); if [ -n "$$bad" ]; then echo "not as gofmt writes it:"; echo "$$bad"; exit 1; fi
	$(GO) vet -buildvcs=false ./...
	$(GO) test -buildvcs=false ./internal/arch
	@if command -v staticcheck >/dev/null; then staticcheck ./...; else echo "staticcheck is not installed, left out"; fi

bench: setup build ## compare with git clone in its three forms (BENCH="flags REPOSITORY.git ...")
	$(GO) build -buildvcs=false -o bin/gitserve ./internal/gittest/gitserve
	$(GO) run -buildvcs=false ./integration/bench $(BENCH)

git-suite: build ## run git's own tests in a mount (GIT_SRC=directory of git's source, SUITE="t1* t3200-*")
	@scripts/git-suite.sh "$(GIT_SRC)" $(SUITE)

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@scripts/fuzz.sh "$(FUZZTIME)"

install: build ## install the command and its shell completions below PREFIX (/usr/local)
	install -D -m 755 bin/artifactfs $(DESTDIR)$(PREFIX)/bin/artifactfs
	install -D -m 755 bin/artifactfs-fsmonitor $(DESTDIR)$(PREFIX)/bin/artifactfs-fsmonitor
	bin/artifactfs completion bash | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/bash-completion/completions/artifactfs
	bin/artifactfs completion zsh | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_artifactfs
	bin/artifactfs completion fish | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/artifactfs.fish

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/artifactfs $(DESTDIR)$(PREFIX)/bin/artifactfs-fsmonitor \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/artifactfs \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_artifactfs \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/artifactfs.fish

clean: ## remove what was built
	rm -rf bin
