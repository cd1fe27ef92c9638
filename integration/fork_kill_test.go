package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// forkWriter writes numbers to two ignored files of a mount, first to build/live/first and then to build/live/second,
// so that at any moment the first has the number of the second, or the next one.
type forkWriter struct {
	m             mounted
	last          atomic.Int64 // number whose second write has returned
	stop, stopped chan struct{}
}

func (m mounted) writeLive() *forkWriter {
	m.w.Helper()
	w := &forkWriter{m: m, stop: make(chan struct{}), stopped: make(chan struct{})}
	m.w.sh(m.Dir, "mkdir -p build/live && printf %09d 0 | tee build/live/first >build/live/second")
	go func() {
		defer close(w.stopped)
		for n := int64(1); ; n++ {
			select {
			case <-w.stop:
				return
			default:
			}
			for _, name := range []string{"first", "second"} {
				// The number has always as many bytes, and the file is not truncated, so that a reader finds a number.
				f, err := os.OpenFile(m.path("build/live/"+name), os.O_WRONLY, 0)
				if err == nil {
					_, err = fmt.Fprintf(f, "%09d", n)
					err = errors.Join(err, f.Close())
				}
				if err != nil {
					return
				}
			}
			w.last.Store(n)
			// New files, so that each fork has something to seal.
			if n%8 == 0 && os.WriteFile(m.path(fmt.Sprint("build/live/new", n%64)), []byte("new"), 0o600) != nil {
				return
			}
		}
	}()
	return w
}

// end ends the writes.
func (w *forkWriter) end() {
	close(w.stop)
	<-w.stopped
}

// live returns the numbers in the two files of a forkWriter.
func (m mounted) live() (first, second int64) {
	m.w.Helper()
	read := func(name string) int64 {
		text, err := os.ReadFile(m.path("build/live/" + name))
		n, parseErr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err := errors.Join(err, parseErr); err != nil {
			m.w.Errorf("read %s: %v", m.path("build/live/"+name), err)
		}
		return n
	}
	return read("first"), read("second")
}

// wantFork compares a fork of a mount in which a forkWriter runs with the other files of the parent.
func (m mounted) wantFork(what, want string) {
	m.w.Helper()
	m.wantCarriedExcept(what, want, "build/live")
	if first, second := m.live(); first != second && first != second+1 {
		m.w.Errorf("%s: got the numbers %d and %d of different moments", what, first, second)
	}
}

// wantCarriedExcept does the same as wantCarried without the paths whose lines contain a text.
func (m mounted) wantCarriedExcept(what, want, except string) {
	m.w.Helper()
	without := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.Contains(line, except) })
	}
	got, lines := without(m.everythingIn()), without(want)
	for _, line := range lines {
		if !slices.Contains(got, line) {
			m.w.Errorf("%s: lacks %q, and has %d of %d lines", what, line, len(got), len(lines))
			return
		}
	}
	if len(got) != len(lines) {
		m.w.Errorf("%s: got %d lines, want %d", what, len(got), len(lines))
	}
}

// inState reports whether a path matches a pattern below the state directory.
func (w *world) inState(pattern ...string) bool {
	found, _ := filepath.Glob(filepath.Join(append([]string{w.state}, pattern...)...))
	return len(found) > 0
}

// usedShare is a share in the output of cache stat.
type usedShare struct {
	ID    string
	Bytes int64
	Users []string
}

// sharesWithUsers returns the shares that cache stat prints.
func (w *world) sharesWithUsers() []usedShare {
	w.Helper()
	var report struct{ Shares []usedShare }
	w.json(&report, "cache", "stat")
	return report.Shares
}

// The worker, or the whole daemon, is killed at each step of a fork, while a program writes to ignored files of the
// parent. The parent loses nothing, a fork has everything of one moment or does not exist, and no share is left that
// no session uses.
func TestForkOutlivesKills(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon=%v", whole), func(t *testing.T) {
			w, s, m := forkRepo(t)
			url := s.URL("r.git")
			w.sh(m.Dir, "mkdir build/live && touch build/live/first")
			want := m.everythingIn()
			shares := func() int { return len(w.shares()) }
			before := 0
			listed := func() string {
				text, _ := os.ReadFile(filepath.Join(w.state, "mounts/work/overlay/shares"))
				return string(text)
			}
			was := ""
			home := func(id string) string { return filepath.Join("mounts", id) }
			for i, step := range []struct {
				what string
				now  func(id string) bool
			}{
				{"the share exists", func(string) bool { return shares() > before }},
				{"the parent lists the share", func(string) bool { return listed() != was }},
				{"the parent has a new directory for contents", func(string) bool {
					return shares() > before && w.inState("mounts/work/overlay/contents-"+w.shares()[shares()-1])
				}},
				{"the contents are in the share", func(string) bool {
					return shares() > before && w.inState("shares", w.shares()[shares()-1], "contents")
				}},
				{"the fork has a home", func(id string) bool { return w.inState(home(id)) }},
				{"the fork lists the shares", func(id string) bool { return w.inState(home(id), "overlay/shares") }},
				{"the fork has a log", func(id string) bool { return w.inState(home(id), "overlay/log") }},
				{"the log of the fork names files", func(id string) bool {
					info, err := os.Stat(filepath.Join(w.state, home(id), "overlay/log"))
					return err == nil && info.Size() > 8192
				}},
				{"the fork is mounted", func(id string) bool { return exists(filepath.Join(w.root, id, "src/new")) }},
			} {
				before, was = shares(), listed()
				live := m.writeLive()
				id := fmt.Sprint("fork", i)
				fork := mounted{w: w}
				fork.Dir = filepath.Join(w.root, id)
				victim := w.serving()
				if whole {
					victim = -w.daemon() // the process group
				}
				done := make(chan result, 1)
				args := []string{"session", "fork", "-C", m.Dir, fork.Dir, "--session", id, "--wait", "git", "--history", "none",
					"--prefetch", "none", "--checkpoint", "off"}
				go func() { done <- w.afs(args...) }()
				for len(done) == 0 && !step.now(id) {
					time.Sleep(50 * time.Microsecond)
				}
				if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
					t.Errorf("%s: kill the worker: %v", step.what, err)
				}
				r := <-done
				if whole { // the mounts have ended with the daemon
					m, _ = w.mountAt(url, m.Dir, "--session", "work", "--checkpoint", "off", "--wait", "git")
				}
				w.ok("status") // it waits for the successor
				served := func() bool { _, err := os.Stat(fork.path("src/new")); return err == nil }
				w.until("the fork is mounted, removed, or complete", func() bool {
					record, err := os.ReadFile(filepath.Join(w.state, home(id), "session.json"))
					return !w.inState(home(id)) || served() || err == nil && !strings.Contains(string(record), `"unfinished"`)
				})
				live.end()
				first, second := m.live()
				if last := live.last.Load(); second != last && second != last+1 || first != last && first != last+1 {
					t.Errorf("%s: the parent has the numbers %d and %d, want %d or the next", step.what, first, second, last)
				}
				m.wantCarriedExcept(step.what+": parent", want, "build/live")
				t.Logf("%s: the fork has the exit code %d, and a home: %v", step.what, r.code, w.inState(home(id)))
				switch {
				case !w.inState(home(id)): // the fork does not exist, and the command can be repeated
					w.ok(args...)
				case whole, !served(): // the fork was complete, but is not mounted
					fork, _ = w.mountAt(url, fork.Dir, "--session", id, "--checkpoint", "off", "--wait", "git")
				}
				fork.wantFork(step.what+": fork", want)
				w.ok("unmount", "--discard", "--yes", fork.Dir)
			}
			// The next fork has everything again.
			again := m.fork("again")
			again.wantFork("last fork", want)
			w.ok("unmount", "--discard", "--yes", again.Dir)
			for range 2 {
				m.fork("twice")
				w.ok("unmount", "--discard", "--yes", filepath.Join(w.root, fmt.Sprint("twice", w.places)))
			}
			w.ok("cache", "gc")
			for _, s := range w.sharesWithUsers() {
				if !slices.Contains(s.Users, "work") {
					t.Errorf("share %s is used by %q, but not by the parent", s.ID, s.Users)
				}
			}
			w.ok("unmount", "--discard", "--yes", m.Dir)
			w.check(os.RemoveAll(filepath.Join(w.state, "trash")))
			w.ok("cache", "gc")
			if got := w.sharesWithUsers(); len(got) > 0 {
				t.Errorf("shares after the end of all sessions: got %+v", got)
			}
		})
	}
}
