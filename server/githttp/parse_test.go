package githttp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/await"
)

func TestParsePath(t *testing.T) {
	for path, want := range map[string]target{
		"/git/ns/r.git/info/refs":                            {"ns", "r", "info/refs"},
		"/git/ns/r/git-upload-pack":                          {"ns", "r", "git-upload-pack"},
		"/git/N-1/a.b_c.git.git/info/lfs/objects/batch":      {"N-1", "a.b_c.git", "info/lfs/objects/batch"},
		"/git/ns/r.git":                                      {},
		"/git/ns/r.git/":                                     {},
		"/git/ns/.git/info/refs":                             {},
		"/git//r.git/info/refs":                              {},
		"/git/ns/../r.git/info/refs":                         {},
		"/git/ns/r.git/../x":                                 {},
		"/git/ns/r.git/info//refs":                           {},
		"/git/ns/r%2egit/info/refs":                          {},
		"/git/ns/r.git/info%2frefs":                          {},
		"/git/ns/" + strings.Repeat("r", 513) + "/info/refs": {},
		"/other/ns/r.git/info/refs":                          {},
		"":                                                   {},
	} {
		if got, ok := parsePath(path); got != want || ok != (want != target{}) {
			t.Errorf("path %q: got %+v, %t, want %+v", path, got, ok, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("/git/ns/r.git/info/refs")
	f.Add("/git/ns/r/git-upload-pack")
	f.Add("/git/../%2e/x")
	f.Fuzz(func(t *testing.T, path string) {
		at, ok := parsePath(path)
		if !ok {
			return
		}
		for part := range strings.SplitSeq(at.namespace+"/"+at.repo+"/"+at.rest, "/") {
			if part == "" || part[0] == '.' || strings.ContainsAny(part, "%\\\x00 ") {
				t.Errorf("path %q has component %q", path, part)
			}
		}
		if again, ok := parsePath(Prefix + at.namespace + "/" + at.repo + ".git/" + at.rest); !ok || again != at {
			t.Errorf("path %q: %+v, and with its usual form %+v", path, at, again)
		}
	})
}

func TestLimiter(t *testing.T) {
	l := &limiter{most: 2, mostOfRepo: 1, mostWaiting: 2, patience: time.Hour}
	acquire := func(repo string) func() {
		t.Helper()
		release, err := l.acquire(t.Context(), repo)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	first := acquire("a")
	second := make(chan func(), 1)
	go func() { release, _ := l.acquire(t.Context(), "a"); second <- release }()
	waiting := func(n int) {
		t.Helper()
		await.Until(t, "requests wait", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.queue) == n })
	}
	waiting(1)
	other := acquire("b") // does not wait for those of a
	ctx, cancel := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() { _, err := l.acquire(ctx, "c"); third <- err }()
	waiting(2)
	if _, err := l.acquire(t.Context(), "d"); err != errBusy {
		t.Errorf("request beside a full queue: got %v, want %v", err, errBusy)
	}
	cancel()
	if err := await.Receive(t, third); !errors.Is(err, context.Canceled) {
		t.Errorf("request that has ended in the queue: got %v, want %v", err, context.Canceled)
	}
	first()
	await.Receive(t, second)()
	other()
	l.patience = 0
	a, b := acquire("a"), acquire("b")
	if _, err := l.acquire(t.Context(), "c"); err != errBusy {
		t.Errorf("request that has waited for too long: got %v, want %v", err, errBusy)
	}
	a()
	b()
	if l.running != 0 || len(l.of) != 0 || len(l.queue) != 0 {
		t.Errorf("limiter after all requests: %d running, %v, %d waiting", l.running, l.of, len(l.queue))
	}
}
