package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func complete(s control.MountStatus) bool { return s.History == control.HistoryComplete }

// storied creates a repository with several commits, branches and tags.
func (w *world) storied(f object.Format) *gittest.Repo {
	w.Helper()
	r := w.repo("storied.git", f)
	ids := must[[]object.ID](w)(r.History(60))
	must[object.ID](w)(r.Commit("feature/x", map[string]gittest.File{"x.txt": {Data: []byte("x\n")}}, "Another root"))
	must[object.ID](w)(r.Commit("dev", map[string]gittest.File{"dev.txt": {Data: []byte("dev\n")}}, "And one more"))
	for name, id := range map[string]object.ID{"v1": ids[9], "v2": ids[49]} {
		if err := r.Tag(name, id); err != nil {
			w.Fatal(err)
		}
	}
	must[object.ID](w)(r.AnnotatedTag("annotated", ids[29], "A tag with a text"))
	return r
}

// checkHistory compares a mount's history with the source's, and lets git check both git directories.
func (w *world) checkHistory(m mounted, r *gittest.Repo) {
	w.Helper()
	count := func(dir, what string) string { return w.git(dir, "--git-dir", dir, "rev-list", "--count", what) }
	if got, want := count(m.gitDir(), "HEAD"), count(r.Path, m.Commit); got != want {
		w.Errorf("commits of the mount: got %s, want the %s of the remote", got, want)
	}
	refs := strings.Fields(w.git(r.Path, "for-each-ref", "--format=%(refname)=%(objectname)", "refs/heads", "refs/tags"))
	for i := range refs {
		refs[i] = strings.Replace(refs[i], "refs/heads/", "refs/remotes/origin/", 1)
	}
	got := strings.Fields(w.git(m.gitDir(), "--git-dir", m.gitDir(), "for-each-ref", "--format=%(refname)=%(objectname)",
		"refs/remotes", "refs/tags"))
	got = slices.DeleteFunc(got, func(ref string) bool { return strings.HasPrefix(ref, "refs/remotes/origin/HEAD=") })
	slices.Sort(refs)
	slices.Sort(got)
	if !slices.Equal(got, refs) {
		w.Errorf("refs %q\nwant %q", got, refs)
	}
	for _, dir := range []string{m.gitDir(), w.storeGit()} {
		if out := w.git(dir, "--git-dir", dir, "fsck", "--no-progress"); out != "" {
			w.Errorf("git fsck in %s printed %s", dir, out)
		}
		if exists(filepath.Join(dir, "shallow")) {
			w.Errorf("%s is marked shallow, want full history", dir)
		}
		if got, want := count(dir, "--all"), count(r.Path, "--all"); got != want {
			w.Errorf("all commits in %s: got %s, want the %s of the remote", dir, got, want)
		}
	}
	info := filepath.Join(w.storeGit(), "objects", "info")
	if !exists(filepath.Join(info, "commit-graph")) && !exists(filepath.Join(info, "commit-graphs")) {
		w.Error("the git directory has no commit-graph")
	}
}

func TestHistoryIsTheSources(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		for _, history := range []string{"full", "background"} {
			t.Run(f.String()+" "+history, func(t *testing.T) {
				w := newWorld(t)
				r := w.storied(f)
				s := w.serve(gittest.ServerOptions{})
				m := w.mount(s.URL("storied.git"), "--history", history, "--prefetch", "none")
				if history == "full" {
					if st := m.status(); !complete(st) {
						t.Errorf("history after mount --history full: got %s", st.History)
					}
				} else {
					m.await("history is complete", complete)
				}
				w.checkHistory(m, r)
				if _, n := s.Log().Blobs(); n != 0 {
					t.Errorf("fetching history fetched %d blobs, want none", n)
				}
			})
		}
	}
}

func TestHistoryNoneStaysShallow(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("storied.git"), "--wait", "git")
	if st := m.status(); st.History != control.HistoryShallow || !st.GitReady {
		t.Errorf("status: history %s, git ready %v", st.History, st.GitReady)
	}
	if n := w.git(m.gitDir(), "--git-dir", m.gitDir(), "rev-list", "--count", "HEAD"); n != "2" {
		t.Errorf("commits of the mount: got %s, want 2", n)
	}
	if out := w.git(m.gitDir(), "--git-dir", m.gitDir(), "fsck", "--no-progress"); out != "" {
		t.Errorf("git fsck failed: %s", out)
	}
	w.compareTrees(m.Dir, w.clone("file://"+r.Path))
}

// A mount of new commits fetches only the objects that are new in them.
func TestLaterMountBringsWhatIsNew(t *testing.T) {
	w := newWorld(t)
	r := w.sized(300, 5)
	must[[]object.ID](t)(r.History(20))
	s := w.serve(gittest.ServerOptions{})
	url := s.URL("sized.git")
	first := w.mount(url, "--history", "full", "--prefetch", "none")
	s.forget()

	commit := w.commit(r, map[string]gittest.File{"d0100/f0002.txt": {Data: []byte("changed\n")}})
	m := w.mount(url, "--history", "full", "--prefetch", "none")
	if m.Commit != commit.String() {
		t.Errorf("mounted commit %s, want %s", m.Commit, commit)
	}
	w.checkHistory(m, r)
	if got := string(must[[]byte](t)(os.ReadFile(m.path("d0100/f0002.txt")))); got != "changed\n" {
		t.Errorf("contents of the changed file: got %q", got)
	}
	if got := string(must[[]byte](t)(os.ReadFile(first.path("d0100/f0002.txt")))); got == "changed\n" {
		t.Error("the first mount shows another commit than before")
	}
	s.quiet()
	objects := 0
	for _, f := range s.Log().Fetches() {
		objects += f.Objects - f.Blobs
	}
	t.Logf("a second mount after a commit that changes one file of 1,500: %d commits and trees\n%s", objects, s.Log())
	if objects > 10 {
		t.Errorf("the second mount fetched %d commits and trees, want about 3", objects)
	}
}
