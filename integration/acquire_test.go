package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestEveryKindOfRef(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorld(t)
			r := w.storied(f)
			s := w.serve(gittest.ServerOptions{})
			old := w.git(r.Path, "rev-parse", "main~5")
			for _, c := range []struct{ ref, shown string }{
				{"", "main"}, {"HEAD", "main"}, {"main", "main"}, {"dev", "dev"}, {"feature/x", "feature/x"},
				{"v1", "v1"}, {"annotated", "annotated"}, {"refs/heads/feature/x", "feature/x"}, {"refs/tags/v2", "v2"}, {old, ""},
			} {
				t.Run(c.ref, func(t *testing.T) {
					var args []string
					rev := "HEAD"
					if c.ref != "" {
						args, rev = []string{"--ref", c.ref}, c.ref
					}
					m := w.bare(s.URL("storied.git"), args...)
					if want := w.git(r.Path, "rev-parse", rev+"^{commit}"); m.Commit != want || m.Ref != c.shown {
						t.Errorf("mounted %q at %s, want %q at %s", m.Ref, m.Commit, c.shown, want)
					}
					checkout := w.clone(s.URL("storied.git"), "--no-checkout")
					w.git(checkout, "checkout", "--quiet", "--detach", m.Commit)
					w.compareTrees(m.Dir, checkout)
					w.unmount(m)
				})
			}
		})
	}
}

func TestDetachedHead(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	old := w.git(r.Path, "rev-parse", "main~3")
	w.git(r.Path, "update-ref", "--no-deref", "HEAD", old)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("storied.git"))
	if m.Commit != old || m.Ref != "" {
		t.Errorf("mounted %q at %s, want no ref name and commit %s", m.Ref, m.Commit, old)
	}
	w.compareTrees(m.Dir, w.clone("file://"+r.Path))
}

func TestUnbornHead(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorld(t)
			w.repo("empty.git", f)
			m := w.mount(w.serve(gittest.ServerOptions{}).URL("empty.git"), "--wait", "all")
			if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) != 1 || entries[0].Name() != ".git" {
				t.Errorf("entries of a mount of an empty repository: got %v, %v", entries, err)
			}
			if m.Commit != "" || m.Ref != "main" {
				t.Errorf("mounted %q at %q, want main without a commit", m.Ref, m.Commit)
			}
			if st := m.status(); st.State != control.StateMounted {
				t.Errorf("status of a mount of an empty repository: %+v", st)
			}
		})
	}
}

func TestUnknownRef(t *testing.T) {
	w := newWorld(t)
	w.storied(object.SHA1)
	url := w.serve(gittest.ServerOptions{}).URL("storied.git")
	for _, ref := range []string{"mian", "refs/heads/none", strings.Repeat("12", 20)} {
		dir := w.place("m")
		r := w.afs("mount", url, dir, "--ref", ref)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		if r.code != control.ExitRemote || len(lines) != 2 || !strings.HasPrefix(lines[1], "hint: ") ||
			!strings.Contains(lines[0], ref) {
			t.Errorf("mount of a missing ref: want exit code %d, the ref and a hint: %s", control.ExitRemote, r)
		}
		if exists(dir) {
			t.Errorf("directory %s still exists after the failed mount", dir)
		}
	}
}

// Mount names the protocol features that a server lacks, and reads the files of such a server correctly.
func TestLesserServers(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults []gittest.Fault
		says   string // part of what mount prints
	}{
		{"no filter", []gittest.Fault{{Kind: gittest.NoFilter}}, "filter"},
		{"no protocol v2", []gittest.Fault{{Kind: gittest.NoV2}}, "version 2"},
		{"plain files", []gittest.Fault{{Kind: gittest.Dumb}}, "version 2"},
		{"no object-info", []gittest.Fault{{Kind: gittest.NoObjectInfo, On: gittest.Capabilities}}, ""},
	} {
		for _, f := range formats {
			if f == object.SHA256 && c.name == "plain files" {
				continue // git itself cannot read SHA-256 from there
			}
			t.Run(c.name+" "+f.String(), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				r := w.storied(f)
				w.git(r.Path, "update-server-info")
				s := w.serve(gittest.ServerOptions{})
				for _, f := range c.faults {
					s.Inject(f)
				}
				dir := w.place("m")
				res := w.afs("mount", s.URL("storied.git"), dir, "-v", "--prefetch", "none")
				if res.code != 0 {
					t.Fatal(res)
				}
				if !strings.Contains(res.stderr, c.says) {
					t.Errorf("mount does not print %q: %s", c.says, res)
				}
				w.compareTrees(dir, w.clone("file://"+r.Path))
				m := mounted{w: w}
				m.Dir = dir
				m.ID = m.await("history is complete", complete).ID
				m.Commit = w.git(r.Path, "rev-parse", "HEAD")
				w.checkHistory(m, r)
			})
		}
	}
}

// A mount of a shallow repository has the commits of that repository, and its git directory is marked shallow as well.
func TestShallowSource(t *testing.T) {
	w := newWorld(t)
	full := w.storied(object.SHA1)
	w.git(w.repos, "clone", "--quiet", "--bare", "--depth", "5", "file://"+full.Path, "shallow.git")
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("shallow.git"), "--history", "full")
	w.compareTrees(m.Dir, w.clone("file://"+full.Path))
	if n := w.git(m.gitDir(), "--git-dir", m.gitDir(), "rev-list", "--count", "HEAD"); n != "5" {
		t.Errorf("commits in the mount: got %s, want the 5 of the remote", n)
	}
	if out := w.git(m.gitDir(), "--git-dir", m.gitDir(), "fsck", "--no-progress"); out != "" {
		t.Errorf("git fsck failed: %s", out)
	}
	if !exists(filepath.Join(m.gitDir(), "shallow")) {
		t.Error("the git directory has no file shallow")
	}
}
