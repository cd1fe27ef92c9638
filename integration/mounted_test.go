package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestListStatusPrefetch(t *testing.T) {
	w := newWorld(t)
	files := sample("prefetch")
	repo := w.repo("r.git", object.SHA1)
	commit := w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"), "--wait", "git")
	out := w.ok("list")
	if !strings.Contains(out, m.Dir) || !strings.Contains(out, s.URL("r.git")) || !strings.Contains(out, "main") {
		t.Errorf("list printed\n%s", out)
	}
	st := m.status()
	if st.ID != m.ID || st.Remote != s.URL("r.git") || st.Ref != "main" || st.Commit != commit.String() ||
		st.State != control.StateMounted || !st.GitReady ||
		st.History != control.HistoryShallow || st.Tree.Files != int64(len(files)) || !st.Tree.Complete ||
		st.Blobs.Total != int64(len(files)) || st.Blobs.Fetched != 0 {
		t.Errorf("status: got %+v", st)
	}
	w.ok("prefetch", m.Dir, "known", "d?/sub/f1", "--wait")
	matched := subtree(files, "known")
	for i := range 6 {
		name := fmt.Sprintf("d%d/sub/f1", i)
		matched[name] = files[name]
	}
	if st = m.status(); st.Blobs.Fetched != int64(len(matched)) {
		t.Errorf("fetched blobs: got %d, want %d", st.Blobs.Fetched, len(matched))
	}
	s.quiet()
	s.Log().Reset()
	if n := readAll(t, m.Dir, matched); n > 0 || len(s.Log().Fetches()) > 0 {
		t.Errorf("%d reads of prefetched files failed; requests\n%s", n, s.Log())
	}
	if r := w.afs("prefetch", m.path("d0"), "--wait", "--json"); r.code != 0 ||
		!strings.Contains(r.stdout, `"matched":6,"fetched":6`) {
		t.Error(r)
	}
	// After a prefetch of everything, the figures of the status are those of the tree.
	w.ok("prefetch", m.Dir, "--wait")
	var bytes int64
	for _, f := range files {
		bytes += int64(len(f.Data))
	}
	st = m.await("no request is in flight", func(st control.MountStatus) bool { return idle([]control.MountStatus{st}) })
	if st.Blobs.Fetched != st.Blobs.Total || st.Blobs.Bytes != bytes {
		t.Errorf("status: got %+v, want %d bytes", st, bytes)
	}
	// While the remote is unreachable, prefetch of missing contents fails; it does not wait for ever.
	w.unmount(m)
	late := w.repo("late.git", object.SHA1)
	w.commit(late, sample("prefetch without a remote"))
	m = w.bare(s.URL("late.git"), "--wait", "git", "--timeout", "1s")
	s.Down()
	w.refusal(w.afs("prefetch", m.Dir, "--wait"), control.ExitRemote, "", "")
	s.up()
}

func TestWaitIsTrue(t *testing.T) {
	w := newWorld(t)
	files := sample("wait")
	repo := w.repo("r.git", object.SHA1)
	must[[]object.ID](t)(repo.History(30))
	w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{RTT: 20 * time.Millisecond})
	m := w.mount(s.URL("r.git"), "--wait", "git")
	if st := m.status(); !st.GitReady || !st.Tree.Complete {
		t.Errorf("status after mount --wait git: got %+v", st)
	}
	if head := w.git(m.gitDir(), "rev-parse", "HEAD"); head != m.Commit {
		t.Errorf("HEAD: got %s", head)
	}
	w.unmount(m)
	other := w.repo("other.git", object.SHA1)
	must[[]object.ID](t)(other.History(30))
	w.commit(other, sample("wait for all"))
	m = w.mount(s.URL("other.git"), "--wait", "all", "--prefetch", "all", "--history", "full")
	st := m.status()
	if st.Blobs.Fetched != st.Blobs.Total || st.Blobs.Total == 0 || st.History != control.HistoryComplete || !st.GitReady {
		t.Errorf("status after mount --wait all: got %+v", st)
	}
	s.Down() // everything is fetched
	if n := readAll(t, m.Dir, sample("wait for all")); n > 0 {
		t.Errorf("%d reads failed without the remote", n)
	}
	if n := w.git(m.gitDir(), "rev-list", "--count", "HEAD"); n != "31" {
		t.Errorf("commits of the mount: got %s", n)
	}
	s.up()
}

// mount --wait all fails if something could not be fetched, and leaves nothing mounted.
func TestWaitForAllFailsHonestly(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("wait in vain"))
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.Status, Status: 403, On: gittest.Fetch,
		Match: func(r gittest.Request) bool { return r.Filter == "" }})
	dir := w.place("m")
	w.refused(control.ExitRemote, "access forbidden", "", s.URL("r.git"), dir, "--wait", "all", "--prefetch", "all",
		"--history", "none", "--timeout", "2s")
	w.nothingLeft(dir)
}

// If the remote disappears while history is fetched, the daemon completes the history once the remote is back.
func TestHistoryHealsBehindTheMount(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("r.git", object.SHA1)
	must[[]object.ID](t)(repo.History(30))
	w.commit(repo, sample("history heals"))
	s := w.serve(gittest.ServerOptions{})
	fault := s.Inject(gittest.Fault{Kind: gittest.TruncatedPack, After: 100,
		Match: func(r gittest.Request) bool { return r.Depth == 0 && r.Filter != "" }})
	m := w.mount(s.URL("r.git"), "--prefetch", "none", "--timeout", "2s")
	st := m.await("status tells of the fault",
		func(st control.MountStatus) bool { return st.State == control.StateDegraded })
	if !strings.Contains(st.Error, "history") || fault.Hits() == 0 {
		t.Errorf("status: got %+v", st)
	}
	fault.Remove()
	m.await("history is complete", func(st control.MountStatus) bool {
		return st.State == control.StateMounted && st.History == control.HistoryComplete
	})
	if n := w.git(m.gitDir(), "rev-list", "--count", "HEAD"); n != "31" {
		t.Errorf("commits of the mount: got %s", n)
	}
}
