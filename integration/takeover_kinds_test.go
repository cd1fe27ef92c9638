package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// struck kills the world's worker at random moments until the returned function is called.
func (w *world) struck(longest time.Duration) (stop func() []torture.Blow) {
	quit, over := make(chan struct{}), make(chan []torture.Blow)
	go func() {
		blows, err := w.victim().Strike(1<<30, syscall.SIGKILL, longest, rand.New(rand.NewPCG(uint64(modelSeed), 4)),
			func() bool {
				select {
				case <-quit:
					return true
				default:
					return false
				}
			})
		if err != nil {
			w.Error(err)
		}
		over <- blows
	}()
	return sync.OnceValue(func() []torture.Blow {
		close(quit)
		return <-over
	})
}

// Commands whose worker is killed wait for the next worker, and run once.
func TestCommandsUnderKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := sample("commands under kills")
	repo := w.repo("r.git", object.SHA1)
	w.commit(repo, files)
	must[object.ID](t)(repo.Commit("other", map[string]gittest.File{"known/a": {Data: []byte("other\n")},
		"link": {Delete: true}}, "Other"))
	url := w.serve(gittest.ServerOptions{RTT: 4 * time.Millisecond}).URL("r.git")
	stays := w.mount(url)
	stop := w.struck(300 * time.Millisecond)
	defer stop()
	rounds := envInt("AFS_TAKEOVER_ROUNDS", 6)
	for i := range rounds {
		flags := [][]string{nil, {"--read-only"}, {"--wait", "git", "--history", "full"}, {"--redirect", "out"},
			{"--prefetch", "all", "--wait", "all"}, {"--history", "none", "--prefetch", "none"}}[i%6]
		m := w.mount(url, flags...)
		part := subtree(files, fmt.Sprintf("d%d", i%6))
		if n := readAll(t, m.Dir, part); n > 0 {
			t.Errorf("round %d: %d reads failed", i, n)
		}
		if i%6 == 3 {
			check(t, os.MkdirAll(m.path("out/deep"), 0o755))
			check(t, os.WriteFile(m.path("out/deep/file"), []byte("out\n"), 0o644))
		}
		w.ok("prefetch", m.Dir, "known", "--wait")
		if st := m.status(); st.State != control.StateMounted || st.Commit != m.Commit {
			t.Errorf("round %d: got status %+v", i, st)
		}
		if i%6 != 1 {
			check(t, os.WriteFile(m.path("mine"), fmt.Appendf(nil, "round %d\n", i), 0o644))
			check(t, os.Rename(m.path("d5"), m.path("moved")))
		}
		if i%6 == 2 {
			w.ok("switch", "-C", m.Dir, "other")
			if got, err := os.ReadFile(m.path("known/a")); err != nil || string(got) != "other\n" {
				t.Errorf("round %d: read after the switch: got %q, %v", i, got, err)
			}
		}
		w.unmount(m)
		if i%6 != 1 {
			w.ok("mount", url, m.Dir)
			if got, err := os.ReadFile(m.path("mine")); err != nil || string(got) != fmt.Sprintf("round %d\n", i) {
				t.Errorf("round %d: read after mounting again: got %q, %v", i, got, err)
			}
			if n := readAll(t, m.path("moved"), renamed(files, "d5/")); n > 0 {
				t.Errorf("round %d: %d reads failed", i, n)
			}
			w.ok("unmount", m.Dir, "--discard", "--yes")
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d kills in %d rounds", len(stop()), rounds)
	if n := readAll(t, stays.Dir, files); n > 0 {
		t.Errorf("%d reads failed", n)
	}
	if at := mountsBelow(w.root); len(at) != 1 && !t.Failed() {
		t.Errorf("mounts: got %q", at)
	}
}

// renamed returns the files below a directory, by their names relative to it.
func renamed(files map[string]gittest.File, dir string) map[string]gittest.File {
	found := map[string]gittest.File{}
	for name, f := range files {
		if rest, ok := bytes.CutPrefix([]byte(name), []byte(dir)); ok {
			found[string(rest)] = f
		}
	}
	return found
}

// Reads that wait for contents succeed even if the worker that requested the contents is killed while the remote is
// slow, down or hangs.
func TestReadersOfASlowRemoteUnderKills(t *testing.T) {
	w := newWorld(t)
	files := sample("slow remote under kills")
	repo := w.repo("r.git", object.SHA1)
	w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"), "--wait", "git")
	stall := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch})
	type read struct {
		name string
		got  []byte
		err  error
	}
	reads := make(chan read)
	for name, f := range files {
		if f.Mode == "120000" {
			continue
		}
		go func() {
			out, err := childOutput("read", m.path(name))
			reads <- read{name, out, err}
		}()
	}
	w.until("a request to the remote hangs", func() bool { return stall.Hits() > 0 })
	for range 3 {
		old := w.serving()
		hits := stall.Hits()
		check(t, syscall.Kill(old, syscall.SIGKILL))
		w.until("the next worker sends a request", func() bool { return stall.Hits() > hits })
	}
	s.Down() // and while the remote is down
	old := w.serving()
	check(t, syscall.Kill(old, syscall.SIGKILL))
	w.until("another worker serves", func() bool { pid := w.victim().Serving(); return pid != 0 && pid != old })
	if _, err := os.Lstat(m.path("known/nothing")); !os.IsNotExist(err) {
		t.Errorf("read of fetched contents without a remote: %v", err)
	}
	stall.Remove()
	check(t, s.Up())
	for name, f := range files {
		if f.Mode == "120000" {
			continue
		}
		r := <-reads
		if r.err != nil || !bytes.Equal(r.got, files[r.name].Data) {
			t.Errorf("read %s (%s): %v%s", r.name, name, r.err, where(r.got, files[r.name].Data))
		}
	}
}

func readChild(path string) error {
	b, err := os.ReadFile(path)
	os.Stdout.Write(b)
	return err
}

// childOutput returns the output of a child process. The child is killed after some time, because it may hang in a
// mount.
func childOutput(what, arg string) ([]byte, error) {
	cmd := child(what, arg)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	limit := time.AfterFunc(commandTime, func() { cmd.Process.Kill() })
	defer limit.Stop()
	err := cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &errs)
	}
	return out.Bytes(), err
}

// Redirects, submodules and mounts of unprivileged users are taken over completely.
func TestTakeoverOfAllKinds(t *testing.T) {
	w, server := nested(t)
	m := w.bare(server.URL("outer.git"), "--recurse-submodules", "--redirect", "out")
	inner := m.path("vendor/lib/in/inner/inner.txt")
	check(t, os.Mkdir(m.path("out"), 0o755))
	held := must[*os.File](t)(os.Create(m.path("out/held")))
	defer held.Close()
	want := string(must[[]byte](t)(os.ReadFile(inner)))
	before := len(mountsBelow(w.root))
	for i := range 4 {
		old := w.serving()
		check(t, syscall.Kill(old, syscall.SIGKILL))
		w.until("another worker serves", func() bool { pid := w.victim().Serving(); return pid != 0 && pid != old })
		w.wantFile(inner, want)
		fmt.Fprintln(held, "line", i)
		check(t, os.WriteFile(m.path(fmt.Sprintf("out/file%d", i)), []byte("out\n"), 0o644))
		check(t, os.WriteFile(filepath.Join(filepath.Dir(inner), fmt.Sprint("new", i)), []byte("new\n"), 0o644))
		if out := w.git(m.path("vendor/lib"), "status", "--porcelain", "--ignore-submodules=all"); out != "" {
			t.Errorf("git status in a submodule printed %q", out)
		}
		w.until(fmt.Sprintf("there are %d mounts", before), func() bool { return len(mountsBelow(w.root)) == before })
	}
	w.wantFile(m.path("out/held"), "line 0\nline 1\nline 2\nline 3\n")
	held.Close()
	w.unmount(m)
	if at := mountsBelow(w.root); len(at) > 0 {
		t.Errorf("still mounted: %q", at)
	}
}

// The load of TestTakeover, run without a takeover, leaves the same tree after an unmount: so the load itself causes no
// difference.
func TestTortureStays(t *testing.T) {
	w := newWorld(t)
	x := w.torture([]string{"names", "signals", "blocks"})
	time.Sleep(2 * time.Second)
	x.end()
	want := w.faces(x.m.path("load"))
	w.unmount(x.m)
	w.ok("mount", x.m.Remote, x.m.Dir)
	w.sameFaces("after unmount and mount", w.faces(x.m.path("load")), want)
	x.begin([]string{"names", "signals", "blocks"})
	time.Sleep(2 * time.Second)
	x.end()
	want = w.faces(x.m.path("load"))
	x.m.flushed()
	w.killDaemon()
	w.ok("mount", x.m.Remote, x.m.Dir)
	w.sameFaces("after a kill", w.faces(x.m.path("load")), want)
}
