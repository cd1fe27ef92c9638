package gitdir

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestFillIndex checks that commands that do not refresh the index use the sizes that were filled in, that git uses the
// ignore files that were filled in, and that nothing else in the index changes.
func TestFillIndex(t *testing.T) {
	asGittest(t)
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tip, err := repo.Commit("main", map[string]gittest.File{"b/.gitignore": {Data: []byte("*.o\n")},
		"a/f": {Data: []byte("1\n")}, "b/f": {Data: []byte("22\n")}, "b/g": {Data: []byte("333\n")}, "empty": {}}, "files")
	if err != nil {
		t.Fatal(err)
	}
	work, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "git")
	d, err := Create(path, Options{WorkTree: work, Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
		Ref: "refs/heads/main", Commit: tip, Git: installed(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gittest.Git(context.Background(), work, "--git-dir", path, "--work-tree", work, "checkout-index",
		"-a"); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		out, err := gittest.Git(context.Background(), work,
			append([]string{"--git-dir", path, "--work-tree", work}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("read-tree", "HEAD")
	run("checkout-index", "-a")
	if err := os.Remove(filepath.Join(path, "index")); err != nil {
		t.Fatal(err)
	}
	old := syscall.NsecToTimespec(1_600_000_000e9)
	tree := object.MustID(run("rev-parse", "HEAD^{tree}"))
	err = d.WriteIndex(context.Background(), IndexOptions{Token: "t:1"},
		func(ctx context.Context, emit func(index.Entry) error) error {
			return walkOf(t, path, tree)(ctx, func(e index.Entry) error {
				if e.Mode == object.ModeFile {
					name := filepath.Join(work, e.Path)
					var st syscall.Stat_t
					if err := syscall.UtimesNano(name, []syscall.Timespec{old, old}); err != nil {
						return err
					}
					if err := syscall.Lstat(name, &st); err != nil {
						return err
					}
					e.Stat = index.Stat{Ctime: st.Ctim.Nano(), Mtime: st.Mtim.Nano(), Ino: uint32(st.Ino), UID: st.Uid, GID: st.Gid}
				}
				return emit(e)
			})
		})
	if err != nil {
		t.Fatal(err)
	}
	sizes := func(e index.Entry) (int64, bool) {
		st, err := os.Lstat(filepath.Join(work, e.Path))
		return st.Size(), err == nil
	}
	o := IndexOptions{Ignore: func(e index.Entry) ([]byte, bool) {
		text, err := os.ReadFile(filepath.Join(work, e.Path))
		return text, err == nil
	}, Bar: func() (func(), bool) { return nil, false }}
	if done, err := d.FillIndex(o, sizes); done || err != nil {
		t.Errorf("fill while git runs: got %v, %v", done, err)
	}
	barred := 0
	o.Bar = func() (func(), bool) { barred++; return func() { barred-- }, true }
	lock := filepath.Join(path, "index.lock")
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if done, err := d.FillIndex(o, sizes); done || err != nil {
		t.Errorf("fill while git has the lock: got %v, %v", done, err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	changed := func(e index.Entry) (int64, bool) { // another process rewrites the index at the same time
		run("-c", "core.fsmonitor=false", "update-index", "--force-write-index")
		return 1, true
	}
	before := run("-c", "core.fsmonitor=false", "ls-files", "-s", "-f")
	text, err := os.ReadFile(filepath.Join(path, "index"))
	if err != nil {
		t.Fatal(err)
	}
	if done, err := d.FillIndex(o, changed); done || err != nil {
		t.Errorf("fill while git writes the index: got %v, %v", done, err)
	}
	if err := os.WriteFile(filepath.Join(path, "index"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if done, err := d.FillIndex(o, sizes); !done || err != nil {
			t.Errorf("fill: got %v, %v", done, err)
		}
	}
	if barred != 0 {
		t.Error("git is still kept from writing the index")
	}
	if left, err := filepath.Glob(filepath.Join(path, "index?*")); len(left) > 0 || err != nil {
		t.Errorf("temporary files: got %q, %v", left, err)
	}
	if got := run("-c", "core.fsmonitor=false", "ls-files", "-s", "-f"); got != before {
		t.Errorf("entries of the index: want %s, got %s", before, got)
	}
	if got := run("-c", "core.fsmonitor=false", "ls-files", "--debug", "b/g"); !strings.Contains(got, "size: 4\t") {
		t.Errorf("git ls-files printed %s", got)
	}
	if text, err = os.ReadFile(filepath.Join(path, "index")); err != nil {
		t.Fatal(err)
	}
	x, err := index.Read(object.SHA1, text)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := x.Untracked.Root.Sub[1].Ignore.String(), run("rev-parse", "HEAD:b/.gitignore"); got != want {
		t.Errorf("ignore file in the index: got %q, want %q", got, want)
	}
	run("-c", "core.fsmonitor=false", "diff-files", "--exit-code", "--raw") // this command compares only stat data
}
