package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// outages are ways in which a remote cannot be reached.
func outages() map[string]func(s served) (end func()) {
	injected := func(f gittest.Fault) func(served) func() {
		return func(s served) func() { return s.Inject(f).Remove }
	}
	return map[string]func(s served) func(){
		"refused": func(s served) func() { s.Down(); return s.up },
		"reset":   injected(gittest.Fault{Kind: gittest.Cut}),
		"unanswered": func(s served) func() {
			if err := s.Silence(); err != nil {
				s.w.Fatal(err)
			}
			return s.up
		},
		"packets lost": func(s served) func() { return must[func()](s.w)(s.Lose()) },
		"status 503":   injected(gittest.Fault{Kind: gittest.Status}),
	}
}

// alone is a tree in which no file has neighbours.
func alone(seed string, n int) map[string]gittest.File {
	files := map[string]gittest.File{}
	for i := range n {
		files[fmt.Sprintf("d%02d/f", i)] = gittest.File{Data: fmt.Appendf(nil, "%s %d\n", seed, i)}
	}
	return files
}

// A read waits for an unreachable remote for at most the duration --timeout, and continues when the remote is reachable
// again.
func TestReadsWaitForRemote(t *testing.T) {
	t.Parallel()
	const (
		outage  = 4 * time.Second  // longer than all attempts of a request
		noticed = 10 * time.Second // a silence counts after 3 s; a connection that cannot be made ends after 15 s
	)
	for name, begin := range outages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			files := alone("away "+name, 24)
			w.commit(w.repo("r.git", object.SHA1), files)
			s := w.serve(gittest.ServerOptions{})
			s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
			m := w.bare(s.URL("r.git"), "--wait", "git", "--timeout", "60s")
			s.forget()
			end := sync.OnceFunc(begin(s))
			defer end()
			var readers sync.WaitGroup
			var mu sync.Mutex
			var early []string
			over := false
			for path, file := range files {
				readers.Go(func() {
					err := readOne(m.path(path), file)
					mu.Lock()
					defer mu.Unlock()
					if !over || err != nil {
						early = append(early, fmt.Sprintf("%s: %v", path, err))
					}
				})
			}
			began := now()
			m.await("status says degraded",
				func(st control.MountStatus) bool { return st.State == control.StateDegraded && st.Error != "" })
			if took := began.elapsed(); took > noticed {
				t.Errorf("status said degraded after %v, want at most %v", took, noticed)
			}
			interrupted := exec.Command("cat", m.path("d00/f"))
			if err := interrupted.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Until(began.at.Add(outage))) // only an outage that lasts shows that readers wait for its end
			interrupted.Process.Signal(syscall.SIGINT)
			if err := within(patience, interrupted.Wait); err == nil {
				t.Error("an interrupted reader succeeded while the remote was unreachable")
			}
			mu.Lock()
			over = true
			mu.Unlock()
			s.Log().Reset()
			end()
			back := now()
			readers.Wait()
			if took := back.elapsed(); took > outage {
				t.Errorf("readers continued %v after the remote was back", took)
			} else {
				t.Logf("readers went on within %v", took)
			}
			if len(early) > 0 {
				t.Errorf("reads that ended early or failed: %s", strings.Join(early, "; "))
			}
			m.await("status says mounted", func(st control.MountStatus) bool { return st.State == control.StateMounted })
			if n := len(s.Log().Requests()); n > len(files) {
				t.Errorf("requests after the remote was back: got %d, want at most %d", n, len(files))
			}
		})
	}
}

// A read that waits for longer than --timeout fails in every kind of outage. The daemon finds the remote again without
// a reader.
func TestReadsWaitNoLongerThanTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	for name, begin := range outages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.commit(w.repo("r.git", object.SHA1), alone("timeout "+name, 3))
			s := w.serve(gittest.ServerOptions{})
			m := w.bare(s.URL("r.git"), "--wait", "git", "--timeout", timeout.String())
			end := sync.OnceFunc(begin(s))
			defer end()
			start := now()
			_, err := os.ReadFile(m.path("d00/f"))
			if took := time.Since(start.at); !errors.Is(err, syscall.EIO) || took < timeout-100*time.Millisecond ||
				start.elapsed() > 3*timeout {
				t.Errorf("read: got %v after %v, want EIO after %v", err, took, timeout)
			}
			m.await("status says degraded", func(st control.MountStatus) bool { return st.State == control.StateDegraded })
			end()
			s.Log().Reset()
			m.await("status says mounted, and nobody reads",
				func(st control.MountStatus) bool { return st.State == control.StateMounted })
			if n := len(s.Log().Requests()); n > 3 {
				t.Errorf("requests to find the remote again: got %d, want at most 3", n)
			}
		})
	}
}

// Background fetches of a mount continue when the remote is back.
func TestHistoryAndPrefetchOutlastOutage(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := alone("outlast", 30)
	w.commit(r, map[string]gittest.File{"first": {Data: []byte("first\n")}})
	w.commit(r, map[string]gittest.File{"second": {Data: []byte("second\n")}})
	w.commit(r, files)
	s := w.serve(gittest.ServerOptions{})
	held := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 1}) // all but the trees
	m := w.mount(s.URL("r.git"), "--timeout", "20s", "--prefetch", "all")
	w.until("a background request is sent", func() bool { return held.Hits() > 0 })
	s.Down()
	held.Remove()
	m.await("status says degraded", func(st control.MountStatus) bool { return st.State == control.StateDegraded })
	s.up()
	m.await("all is here", func(st control.MountStatus) bool {
		return st.State == control.StateMounted && st.History == control.HistoryComplete && st.Blobs.Fetched == st.Blobs.Total
	})
}

// An object whose answers are invalid is not requested without end: the daemon names it in the status and refuses it.
// All other objects are read.
func TestUnusableAnswer(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := map[string]gittest.File{}
	for i := range 100 {
		files[fmt.Sprintf("d%d/f%02d", i/50, i)] = gittest.File{Data: fmt.Appendf(nil, "unusable %d\n", i)}
	}
	w.commit(r, files)
	bad := must[object.ID](t)(object.Hash(object.SHA1, object.Blob, files["d0/f07"].Data))
	var mu sync.Mutex
	asked, now, most := 0, 0, 0
	wantsBad := func(q gittest.Request) bool { return slices.Contains(q.Wants, bad) }
	s := w.serve(gittest.ServerOptions{Each: func(q gittest.Request) {
		mu.Lock()
		defer mu.Unlock()
		if wantsBad(q) {
			now--
		}
	}})
	s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	spoil := s.Inject(gittest.Fault{Kind: gittest.CorruptPack, Match: func(q gittest.Request) bool {
		if !wantsBad(q) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		asked++
		now++
		most = max(most, now)
		return true
	}})
	m := w.mount(s.URL("r.git"), "--prefetch", "all", "--timeout", "30s", "--wait", "git")
	good := maps.Clone(files)
	delete(good, "d0/f07")
	var readers sync.WaitGroup
	for path, file := range good {
		readers.Go(func() {
			if err := readOne(m.path(path), file); err != nil {
				t.Errorf("read %s after the outage: %v", path, err)
			}
		})
	}
	for range 20 {
		readers.Go(func() {
			if _, err := os.ReadFile(m.path("d0/f07")); !errors.Is(err, syscall.EIO) {
				t.Errorf("read of the object whose answer cannot be used: %v, want EIO", err)
			}
		})
	}
	readers.Wait()
	st := m.await("status names the object", func(st control.MountStatus) bool { return len(st.Refused) == 1 })
	if got := st.Refused[0]; got.Object != bad.String() || got.Path != "d0/f07" || got.Cause == "" ||
		st.State != control.StateDegraded {
		t.Errorf("status: state %s, refused %+v, want degraded and object %s", st.State, got, bad)
	}
	text := w.ok("status", m.Dir)
	if !strings.Contains(text, "refused   object "+bad.String()+" (d0/f07): ") {
		t.Errorf("status does not name the object:\n%s", text)
	}
	for range 50 {
		if err := readOne(m.path("d0/f07"), files["d0/f07"]); !errors.Is(err, syscall.EIO) {
			t.Errorf("second read of the refused object: %v, want EIO", err)
		}
	}
	mu.Lock()
	if asked > 14 || most > 2 { // the server may notice the end of a request after the next one has arrived
		t.Errorf("requests for the refused object: got %d, %d at once; want at most 14, one after the other", asked, most)
	}
	mu.Unlock()
	// The daemon requests the object again after growing pauses, and at once when the user runs prefetch.
	spoil.Remove()
	w.ok("prefetch", m.Dir, "d0/f07", "--wait")
	if err := readOne(m.path("d0/f07"), files["d0/f07"]); err != nil {
		t.Errorf("read after the server was repaired: %v", err)
	}
	m.await("the refusal is over",
		func(st control.MountStatus) bool { return len(st.Refused) == 0 && st.State == control.StateMounted })
}

// A mount whose trees are invalid fails after a few requests, with an error that names the refused object.
func TestUnusableTrees(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("unusable trees"))
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.CorruptPack, On: gittest.Fetch, After: 600})
	w.refused(control.ExitRemote, "reject object ", "", s.URL("r.git"), w.place("m"))
	if n := len(s.Log().Fetches()); n > 3 {
		t.Errorf("fetches: got %d, want at most 3", n)
	}
}
