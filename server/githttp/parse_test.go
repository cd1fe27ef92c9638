package githttp

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/await"
	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/server/meter"
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
	l := &limiter{most: 2, mostOf: map[kind]int{ofRepo: 1}, mostWaiting: 2, patience: time.Hour}
	acquire := func(repo string) func() {
		t.Helper()
		release, err := l.acquire(t.Context(), share{ofRepo, repo})
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	first := acquire("a")
	second := make(chan func(), 1)
	go func() { release, _ := l.acquire(t.Context(), share{ofRepo, "a"}); second <- release }()
	waiting := func(n int) {
		t.Helper()
		await.Until(t, "requests wait", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.queue) == n })
	}
	waiting(1)
	other := acquire("b") // does not wait for those of a
	ctx, cancel := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() { _, err := l.acquire(ctx, share{ofRepo, "c"}); third <- err }()
	waiting(2)
	if _, err := l.acquire(t.Context(), share{ofRepo, "d"}); err != errBusy {
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
	if _, err := l.acquire(t.Context(), share{ofRepo, "c"}); err != errBusy {
		t.Errorf("request that has waited for too long: got %v, want %v", err, errBusy)
	}
	a()
	b()
	if l.running != 0 || len(l.of) != 0 || len(l.queue) != 0 {
		t.Errorf("limiter after all requests: %d running, %v, %d waiting", l.running, l.of, len(l.queue))
	}
}

// A command that runs alone has a thread for each processor; those that run at once share the processors.
func TestThreads(t *testing.T) {
	for _, c := range []struct {
		processors, running int
		want                string
	}{{2, 1, "2"}, {2, 2, "1"}, {2, 20, "1"}, {64, 1, "4"}, {64, 20, "3"}, {1, 1, "1"}} {
		l := limiter{processors: c.processors, running: c.running}
		if got, want := l.threads(), []string{"-c", "pack.threads=" + c.want}; !slices.Equal(got, want) {
			t.Errorf("%d commands on %d processors: got %q, want %q", c.running, c.processors, got, want)
		}
	}
}

func TestReadAsked(t *testing.T) {
	tip, other, dir := strings.Repeat("1", 40), strings.Repeat("2", 40), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "packed-refs"), []byte("# pack-refs\n"+tip+" refs/heads/main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		lines  string
		kind   string
		little bool // git compares little
	}{
		"clone":                         {"want " + tip, meter.Clone, false},
		"clone of version 0":            {"want " + tip + " ofs-delta agent=git/2.39.5", meter.Clone, false},
		"clone of one commit":           {"deepen 1,want " + tip, meter.Clone, true},
		"clone of ten commits":          {"deepen 10,want " + tip, meter.Clone, false},
		"clone without contents":        {"filter blob:none,want " + tip, meter.Clone, false},
		"wanted ref":                    {"want-ref refs/heads/main", meter.Clone, false},
		"fetch":                         {"want " + tip + ",have " + other, meter.Fetch, false},
		"fetch of one commit":           {"deepen 1,want " + tip + ",have " + other, meter.Fetch, false},
		"contents for a partial clone":  {"filter blob:none,want " + other + ",want " + tip, meter.Fetch, true},
		"contents for a working commit": {"filter blob:none,want " + other + ",have " + tip, meter.Fetch, false},
	} {
		var head []byte
		for line := range strings.SplitSeq(c.lines, ",") {
			head = pktline.AppendLine(head, line)
		}
		got := readAsked(pktline.AppendFlush(head), dir)
		if got.kind() != c.kind || (len(got.options()) > 0) != c.little {
			t.Errorf("%s: got %s with options %q, want %s with options: %t", name, got.kind(), got.options(), c.kind, c.little)
		}
	}
}

func TestSharesOfTokens(t *testing.T) {
	l := &limiter{most: 4, mostOf: map[kind]int{ofRepo: 3, ofToken: 2, ofNamespace: 3}, mostWaiting: 4}
	acquire := func(namespace, token, repo string, want error) {
		t.Helper()
		_, err := l.acquire(t.Context(), share{ofRepo, repo}, share{ofToken, token}, share{ofNamespace, namespace})
		if err != want {
			t.Errorf("acquire for token %s and repository %s of %s: got %v, want %v", token, repo, namespace, err, want)
		}
	}
	acquire("a", "1", "x", nil)
	acquire("a", "1", "y", nil)
	acquire("a", "1", "z", errBusy)
	acquire("a", "2", "x", nil)
	acquire("a", "2", "z", errBusy)
	acquire("b", "3", "x", nil)
	acquire("c", "4", "u", errBusy) // all places are taken
}

func TestQueueHasRoomForOthers(t *testing.T) {
	l := &limiter{most: 4, mostOf: map[kind]int{ofRepo: 1}, mostWaiting: 4, patience: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 3 {
		go l.acquire(ctx, share{ofRepo, "a"})
		await.Until(t, "request runs or waits", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.running+len(l.queue) == i+1 })
	}
	if _, err := l.acquire(ctx, share{ofRepo, "a"}); err != errBusy {
		t.Errorf("request of a repository that has half of the queue: got %v, want %v", err, errBusy)
	}
	release, err := l.acquire(ctx, share{ofRepo, "b"})
	if err != nil {
		t.Fatalf("request of another repository: %v", err)
	}
	release()
}
