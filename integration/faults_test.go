package integration

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const (
	password   = "hunter2"                 // in every URL of these tests; nothing may ever show it
	shortWait  = 2 * time.Second           // the longest time for an operation without a fault, on a busy machine too
	readWithin = shortWait + 6*time.Second // the deadline of a read, and the delay of a busy machine
	faultLanes = 6                         // faults that are tested at once: the tests mostly wait
)

// fault is a way in which a server fails until end is called.
type fault struct {
	name   string
	begin  func(s served) (end func())
	denied bool // the fault concerns authorisation: reads fail with EACCES
	sure   bool // no mount can succeed under the fault
	polite bool // the server asks the client to wait: only a read notices that the fault is over
}

// injected returns a fault that the server's handler causes.
func injected(name string, f gittest.Fault) fault {
	return fault{name: name, begin: func(s served) func() { return s.Inject(f).Remove }}
}

func (f fault) heeded() fault  { f.polite, f.sure = true, true; return f }
func (f fault) certain() fault { f.sure = true; return f }
func (f fault) denies() fault  { f.denied, f.sure = true, true; return f }

func faults() []fault {
	const fetch = gittest.Fetch
	all := []fault{
		injected("cut at once", gittest.Fault{Kind: gittest.Cut}).certain(),
		injected("cut in the first packet", gittest.Fault{Kind: gittest.Cut, On: fetch, After: 3}).certain(),
		injected("cut in the pack's header", gittest.Fault{Kind: gittest.Cut, On: fetch, After: 40}),
		injected("cut in the pack", gittest.Fault{Kind: gittest.Cut, On: fetch, After: 1500}),
		injected("stall at once", gittest.Fault{Kind: gittest.Stall}).certain(),
		injected("stall in the pack", gittest.Fault{Kind: gittest.Stall, On: fetch, After: 1500}),
		injected("drip", gittest.Fault{Kind: gittest.Drip, On: fetch, After: 100, Every: 200 * time.Millisecond}),
		injected("status 503", gittest.Fault{Kind: gittest.Status}).certain(),
		injected("status 429 for an hour", gittest.Fault{Kind: gittest.Status, Status: 429, RetryAfter: time.Hour}).heeded(),
		injected("status 401", gittest.Fault{Kind: gittest.RequireAuth, User: "someone", Pass: "else"}).denies(),
		injected("status 403", gittest.Fault{Kind: gittest.Status, Status: 403}).denies(),
		injected("status 404", gittest.Fault{Kind: gittest.Status, Status: 404}).certain(),
		injected("truncated pack", gittest.Fault{Kind: gittest.TruncatedPack, After: 600}),
		injected("corrupt pack", gittest.Fault{Kind: gittest.CorruptPack}).certain(),
		injected("corrupt pack with a good checksum", gittest.Fault{Kind: gittest.CorruptPack, GoodTrailer: true}).certain(),
		injected("wrong object", gittest.Fault{Kind: gittest.WrongObject}).certain(),
		injected("garbage", gittest.Fault{Kind: gittest.Garbage}).certain(),
		{name: "down", sure: true, begin: func(s served) func() {
			s.Down()
			return func() { s.up() }
		}},
		{name: "death in the pack", begin: func(s served) func() {
			// The server dies when the first answer has reached that size, not before.
			stalled := s.Inject(gittest.Fault{Kind: gittest.Stall, On: fetch, After: 1500})
			var dying sync.WaitGroup
			given := make(chan struct{})
			dying.Go(func() {
				for stalled.Hits() == 0 {
					select {
					case <-given:
						return
					case <-time.After(time.Millisecond):
					}
				}
				s.Down()
			})
			return func() {
				close(given)
				dying.Wait()
				stalled.Remove()
				s.up()
			}
		}},
	}
	return all
}

func (s served) up() {
	s.w.Helper()
	if err := s.Up(); err != nil {
		s.w.Fatal(err)
	}
}

// withSecret is a URL with a password in it.
func withSecret(url string) string {
	return strings.Replace(url, "://", "://user:"+password+"@", 1)
}

// eachFault runs a test under every fault, several at once, each in its own world.
func eachFault(t *testing.T, test func(w *world, f fault)) {
	var running sync.WaitGroup
	lanes := make(chan struct{}, faultLanes)
	for _, f := range faults() {
		lanes <- struct{}{}
		running.Go(func() {
			defer func() { <-lanes }()
			t.Run(f.name, func(t *testing.T) {
				w := newWorld(t)
				test(w, f)
				w.noSecret()
			})
		})
	}
	running.Wait()
}

// noSecret looks for the password in all files that the daemon has written.
func (w *world) noSecret() {
	w.Helper()
	filepath.WalkDir(w.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(password)) {
			w.Errorf("%s holds the password", path)
		}
		return nil
	})
}

// sample is a tree whose contents no other test has, because all mounts of a host share the contents that they fetch.
func sample(seed string) map[string]gittest.File {
	h := fnv.New64a()
	io.WriteString(h, seed)
	rnd := rand.New(rand.NewPCG(h.Sum64(), 1))
	noise := func(n int) []byte {
		b := []byte(seed + "\n")
		for len(b) < n {
			b = append(b, byte(rnd.Uint32()))
		}
		return b
	}
	files := map[string]gittest.File{"known/a": {Data: noise(500)}, "known/b": {Data: noise(70_000)},
		"link": {Data: []byte("big/0"), Mode: "120000"}}
	for i := range 6 {
		for j := range 6 {
			files[fmt.Sprintf("d%d/sub/f%d", i, j)] = gittest.File{Data: noise(50 + rnd.IntN(2000))}
		}
	}
	for i := range 3 {
		files[fmt.Sprintf("big/%d", i)] = gittest.File{Data: noise(40_000)}
	}
	return files
}

// readAll reads every file with several readers at once. Each read must return the committed contents or one of the
// errors, in time. It returns the number of errors.
func readAll(t testing.TB, dir string, files map[string]gittest.File, allowed ...syscall.Errno) (failed int) {
	t.Helper()
	var mu sync.Mutex
	var readers sync.WaitGroup
	paths := slices.Sorted(maps.Keys(files))
	turn := make(chan string)
	for range 16 {
		readers.Go(func() {
			for path := range turn {
				start := now()
				err := readOne(filepath.Join(dir, path), files[path])
				took := start.elapsed()
				mu.Lock()
				var errno syscall.Errno
				switch {
				case took > readWithin:
					t.Errorf("%s took %v (%v)", path, took, err)
				case err == nil:
				case errors.As(err, &errno) && slices.Contains(allowed, errno):
					failed++
				default:
					t.Errorf("read %s: %v", path, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, path := range paths {
		turn <- path
	}
	close(turn)
	readers.Wait()
	return failed
}

// readOne reads a path after it has dropped the pages that the kernel has cached.
func readOne(path string, want gittest.File) error {
	if want.Mode == "120000" {
		target, err := os.Readlink(path)
		if err == nil && target != string(want.Data) {
			err = fmt.Errorf("link to %q", target)
		}
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got, err := io.ReadAll(f)
	if err == nil && !bytes.Equal(got, want.Data) {
		err = fmt.Errorf("%d wrong bytes, want %d", len(got), len(want.Data))
	}
	return err
}

func subtree(files map[string]gittest.File, dir string) map[string]gittest.File {
	part := maps.Clone(files)
	maps.DeleteFunc(part, func(path string, _ gittest.File) bool { return !strings.HasPrefix(path, dir+"/") })
	return part
}

func TestFaultUnderFullRead(t *testing.T) {
	eachFault(t, func(w *world, f fault) {
		files := sample("read under " + f.name)
		w.commit(w.repo("r.git", object.SHA1), files)
		s := w.serve(gittest.ServerOptions{})
		m := w.bare(withSecret(s.URL("r.git")), "--timeout", shortWait.String(), "--wait", "git")
		known := subtree(files, "known")
		w.until("the known files are fetched", func() bool { return readAll(w, m.Dir, known, syscall.EIO) == 0 })
		end := sync.OnceFunc(f.begin(s))
		defer end()
		allowed := []syscall.Errno{syscall.EIO}
		if f.denied {
			allowed = []syscall.Errno{syscall.EACCES}
		}
		var both sync.WaitGroup
		done := make(chan struct{})
		stop := sync.OnceFunc(func() {
			close(done)
			both.Wait()
		})
		defer stop()
		both.Go(func() { // at the same time fetched contents are read, and status answers
			for over := false; !over; {
				select {
				case <-done:
					over = true
				case <-time.After(50 * time.Millisecond): // the other faults, which are tried at once, need the processors too
				}
				start := now()
				if n := readAll(w, m.Dir, known); n > 0 || start.elapsed() > shortWait {
					w.Errorf("reads of fetched contents: %d errors in %v", n, start.elapsed())
				}
			}
		})
		failed := readAll(w, m.Dir, files, allowed...)
		if failed > 0 {
			st := m.await("status tells of the fault",
				func(st control.MountStatus) bool { return st.State == control.StateDegraded })
			if st.Error == "" || strings.Contains(st.Error, password) {
				w.Errorf("status error %q", st.Error)
			}
			w.Logf("%d of %d failed: %s", failed, len(files), st.Error)
		}
		stop()
		if r := w.afs("status", m.Dir); r.code != 0 || strings.Contains(r.stdout+r.stderr, password) {
			w.Error(r)
		}
		end()
		healed := func(st control.MountStatus) bool { return st.State == control.StateMounted }
		if !f.polite {
			m.await("it is healed", healed)
		}
		// A very busy machine may need several tries, because the timeout of a read is shortWait.
		w.until("everything can be read after the fault", func() bool { return readAll(w, m.Dir, files, syscall.EIO) == 0 })
		m.await("it is healed", healed)
	})
}

func TestFaultDuringAcquisition(t *testing.T) {
	t.Parallel()
	eachFault(t, func(w *world, f fault) {
		files := sample("acquired under " + f.name)
		w.commit(w.repo("r.git", object.SHA1), files)
		s := w.serve(gittest.ServerOptions{})
		end := sync.OnceFunc(f.begin(s))
		defer end()
		parent := w.place("parent")
		dir := filepath.Join(parent, "deep", "m")
		url := withSecret(s.URL("r.git"))
		start := now()
		r := w.afs("mount", url, dir, "--timeout", shortWait.String(), "--history", "none", "--prefetch", "none")
		w.Logf("after %v: %s", time.Since(start.at).Round(time.Millisecond), r)
		if strings.Contains(r.stdout+r.stderr, password) {
			w.Error("the password is shown")
		}
		switch {
		case r.code == 0 && !f.sure: // the root tree was fetched before the fault
			denied := map[string]gittest.File{}
			maps.Copy(denied, files)
			readAll(w, dir, denied, syscall.EIO)
		case r.code != control.ExitRemote:
			w.Errorf("exit code of mount: got %d, want %d", r.code, control.ExitRemote)
		default:
			w.oneLineAndHint(r)
			w.nothingLeft(parent)
			if took := start.elapsed(); took > 4*readWithin {
				w.Errorf("mount took %v", took)
			}
		}
		end()
		if r.code != 0 {
			w.ok("mount", url, dir, "--history", "none", "--prefetch", "none")
		}
		m := mounted{control.MountReply{Dir: dir}, w}
		m.await("all trees are here", func(st control.MountStatus) bool { return st.Tree.Complete && st.GitReady })
		healed := func(st control.MountStatus) bool { return st.State == control.StateMounted }
		if r.code == 0 { // contents whose answers all ended early are refused until they are requested again
			m.await("it is healed", healed)
		}
		// A very busy machine may need several tries, because the timeout of a read is shortWait.
		w.until("everything can be read after the fault", func() bool { return readAll(w, dir, files, syscall.EIO) == 0 })
		m.await("it is healed", healed)
		w.ok("unmount", dir)
		w.nothingLeft(parent)
	})
}

// oneLineAndHint checks the form of an error: one line, then at most one with a hint.
func (w *world) oneLineAndHint(r result) {
	w.Helper()
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	if len(lines) > 2 || !strings.HasPrefix(lines[0], "artifactfs: ") ||
		len(lines) == 2 && !strings.HasPrefix(lines[1], "hint: ") || r.stdout != "" {
		w.Errorf("error is not one line, with at most one hint: %s", r)
	}
}

// nothingLeft checks that no mount, no directory at path, nothing below mounts/ and no process but the daemon is left.
func (w *world) nothingLeft(path string) {
	w.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		w.Errorf("%s still exists (%v)", path, err)
	}
	if at := mountsBelow(w.root); len(at) > 0 {
		w.Errorf("still mounted: %s", at)
	}
	if homes, err := os.ReadDir(filepath.Join(w.state, "mounts")); len(homes) > 0 {
		w.Errorf("left below mounts: %v, %v", homes, err)
	}
	w.until("no more than one daemon is left",
		func() bool { return len(slices.DeleteFunc(daemonsBelow(w.root), isWorker)) <= 1 })
}

// waiting is a process that waits for contents.
type waiting struct {
	*exec.Cmd
	out bytes.Buffer
}

func (w *world) start(name string, args ...string) *waiting {
	w.Helper()
	p := &waiting{Cmd: exec.Command(name, args...)}
	p.Stdout, p.Stderr = &p.out, &p.out
	if err := p.Start(); err != nil {
		w.Fatal(err)
	}
	return p
}

// interrupt ends a process as Ctrl-C does. The process must end within shortWait.
func (w *world) interrupt(p *waiting) {
	w.Helper()
	start := now()
	p.Process.Signal(syscall.SIGINT)
	p.Wait()
	if took := start.elapsed(); took > shortWait {
		w.Errorf("%s: ended %v after SIGINT", p.Args, took)
	}
	if status := p.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGINT {
		w.Errorf("%s: got %v with output %q, want an end by SIGINT", p.Args, p.ProcessState, &p.out)
	}
}

// While a lookup waits, the kernel blocks all other lookups of the same name uninterruptibly, so the readers that wait
// for the same contents open them by different names.
func TestInterruptOfAReaderThatWaits(t *testing.T) {
	for name, c := range map[string]struct{ plain, stall gittest.Fault }{
		"for contents": {gittest.Fault{Kind: gittest.NoObjectInfo}, gittest.Fault{Kind: gittest.Stall}},
		"for sizes": {gittest.Fault{Kind: gittest.NoObjectInfo,
			Match: func(gittest.Request) bool { return false }}, gittest.Fault{Kind: gittest.Stall}},
		"for contents of a known size": {gittest.Fault{Kind: gittest.NoObjectInfo,
			Match: func(gittest.Request) bool { return false }}, gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			files := sample("interrupted " + name)
			files["twin/a"], files["twin/b"] = files["big/0"], files["big/0"]
			w.commit(w.repo("r.git", object.SHA1), files)
			s := w.serve(gittest.ServerOptions{Config: []string{"transfer.advertiseObjectInfo=true"}})
			s.Inject(c.plain)
			m := w.bare(s.URL("r.git"), "--wait", "git")
			stall := s.Inject(c.stall)
			// One reader of each kind: of the same contents, a neighbour, another directory, a symbolic link.
			leave := []*waiting{w.start("cat", m.path("twin/a")), w.start("cat", m.path("big/2")),
				w.start("cat", m.path("d1/sub/f1"))}
			stays := w.start("cat", m.path("twin/b"))
			w.until("all wait", func() bool { return stall.Hits() > 0 && w.requestsWaiting(m.Dir) >= len(leave)+1 })
			for _, p := range leave {
				w.interrupt(p)
			}
			stall.Remove()
			if err := stays.Wait(); err != nil || !bytes.Equal(stays.out.Bytes(), files["twin/b"].Data) {
				t.Errorf("the reader that was not interrupted: got %v, %d bytes", err, stays.out.Len())
			}
		})
	}
}

// requestsWaiting counts the requests to a mount that are not answered.
func (w *world) requestsWaiting(dir string) int {
	w.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		w.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("%s/%d/waiting", connections, unix.Minor(st.Dev)))
	if err != nil {
		w.Fatalf("read the number of waiting requests: %v", err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

func TestInterruptWhileTreesStream(t *testing.T) {
	w := newWorld(t)
	files := sample("interrupted while trees stream")
	w.commit(w.repo("r.git", object.SHA1), files)
	s := w.serve(gittest.ServerOptions{})
	// The commit and the root tree are fetched, the other trees are not.
	stall := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 700})
	dir := w.place("m")
	w.ok("mount", s.URL("r.git"), dir, "--history", "none", "--prefetch", "none")
	m := mounted{control.MountReply{Dir: dir}, w}
	if st := m.status(); st.Tree.Complete || st.GitReady {
		t.Errorf("status while trees are fetched: %+v", st)
	}
	p := w.start("find", dir)
	w.until("find waits", func() bool { return w.requestsWaiting(dir) > 0 })
	w.interrupt(p)
	stall.Remove()
	m.await("all trees are here", func(st control.MountStatus) bool { return st.Tree.Complete && st.GitReady })
	if n := readAll(w, dir, files); n > 0 {
		t.Errorf("%d reads failed after the server answered again", n)
	}
}

// A server that asks the client to retry later (Retry-After) receives the request again, and no reader gets an error.
func TestRetryAfterIsHeeded(t *testing.T) {
	w := newWorld(t)
	files := sample("retry after")
	w.commit(w.repo("r.git", object.SHA1), files)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"), "--wait", "git")
	busy := s.Inject(gittest.Fault{Kind: gittest.Status, Status: 429, RetryAfter: time.Second,
		On: gittest.Fetch, Times: 2})
	start := time.Now()
	if n := readAll(w, m.Dir, subtree(files, "d0")); n > 0 {
		t.Errorf("%d reads failed", n)
	}
	if took := time.Since(start); busy.Hits() == 0 || took < time.Second {
		t.Errorf("the server refused %d requests, and all files were read after %v", busy.Hits(), took)
	}
}
