package index_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// world is a clone with a checkout, for which the tests write indexes.
type world struct {
	t      testing.TB
	dir    string // real path of the working tree
	format object.Format
	tree   object.ID
}

func (w *world) git(args ...string) string {
	w.t.Helper()
	out, err := gittest.Git(context.Background(), w.dir, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func clone(t testing.TB, f object.Format, fill func(r *gittest.Repo, f object.Format) error) *world {
	t.Helper()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "source.git"), gittest.RepoOptions{Format: f})
	if err == nil {
		err = fill(repo, f)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: filepath.Join(dir, "work"), format: f}
	if _, err := gittest.Git(context.Background(), dir, "clone", "--quiet", repo.Path, "work"); err != nil {
		t.Fatal(err)
	}
	w.git("config", "core.fsmonitor", w.hook("token:2"))
	w.git("config", "core.fsmonitorHookVersion", "2")
	w.git("config", "core.untrackedCache", "true")
	w.tree = object.MustID(w.git("rev-parse", "HEAD^{tree}"))
	return w
}

// hook creates an fsmonitor hook that always returns the same answer.
func (w *world) hook(answer ...string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "hook")
	script := "#!/bin/sh\nprintf '%s\\0'"
	for _, a := range answer {
		script += " '" + a + "'"
	}
	if err := os.WriteFile(path, []byte(script+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *world) stat(path string) index.Stat {
	w.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(w.dir, path), &st); err != nil {
		w.t.Fatal(err)
	}
	return index.Stat{Ctime: st.Ctim.Nano(), Mtime: st.Mtim.Nano(), Dev: uint32(st.Dev), Ino: uint32(st.Ino), UID: st.Uid,
		GID: st.Gid, Size: uint32(st.Size)}
}

// build returns the index of HEAD's tree.
func (w *world) build(o index.Options) *index.Index {
	w.t.Helper()
	o.Format = w.format
	if o.Untracked != nil && o.Untracked.PerDirectory == "" {
		exclude, err := os.ReadFile(filepath.Join(w.dir, ".git", "info", "exclude"))
		if err != nil {
			w.t.Fatal(err)
		}
		o.Untracked.Ident, o.Untracked.PerDirectory = index.Ident(w.dir), ".gitignore"
		o.Untracked.InfoExclude.ID = index.ExcludeID(w.format, exclude)
	}
	b := index.NewBuilder(o)
	b.Dir("", w.tree, w.stat(""))
	for _, line := range strings.Split(strings.TrimSuffix(w.git("ls-tree", "-r", "-t", "-z", w.tree.String()), "\x00"),
		"\x00") {
		head, path, _ := strings.Cut(line, "\t")
		if path == "" {
			continue
		}
		fields := strings.Fields(head)
		mode, err := strconv.ParseUint(fields[0], 8, 32)
		if err != nil {
			w.t.Fatal(err)
		}
		e := index.Entry{Path: path, Mode: object.Mode(mode), ID: object.MustID(fields[2]), Stat: w.stat(path), Valid: true}
		if e.Mode == object.ModeDir {
			b.Dir(e.Path, e.ID, e.Stat)
		} else {
			b.Add(e)
		}
	}
	x, err := b.Index()
	if err != nil {
		w.t.Fatal(err)
	}
	return x
}

func encode(t testing.TB, x *index.Index) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := x.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (w *world) indexFile() string { return filepath.Join(w.dir, ".git", "index") }

func (w *world) install(x *index.Index) {
	w.t.Helper()
	if err := os.WriteFile(w.indexFile(), encode(w.t, x), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// older gives the files old modification times, so that git trusts the stat data in the index.
func (w *world) older() {
	w.t.Helper()
	for _, name := range strings.Split(w.git("ls-files", "-z", "--", ":!"+gittest.TrickyGitlink, ":!module"), "\x00") {
		times := []unix.Timespec{{Sec: 1_600_000_000}, {Sec: 1_600_000_000}}
		if name != "" {
			if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(w.dir, name), times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func forAll(t *testing.T, test func(t *testing.T, f object.Format, version uint32)) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		for _, version := range []uint32{2, 4} {
			t.Run(fmt.Sprintf("%s v%d", f, version), func(t *testing.T) { test(t, f, version) })
		}
	}
}

func tricky(r *gittest.Repo, _ object.Format) error {
	_, err := r.Tricky()
	return err
}

// TestStockGitReadsIt checks that git reads the same entries from an index of this package as from one of its own.
func TestStockGitReadsIt(t *testing.T) {
	forAll(t, func(t *testing.T, f object.Format, version uint32) {
		fill := small
		if f == object.SHA1 && version == index.Version { // the test takes long
			fill = tricky
		}
		w := clone(t, f, fill)
		w.older()
		w.git("-c", "core.fsmonitor=false", "update-index", "--refresh", "-q")
		const list = "ls-files -s --debug"
		want := w.git(append([]string{"-c", "core.fsmonitor=false"}, strings.Fields(list)...)...)
		x := w.build(index.Options{Version: version, Token: "token:1", Untracked: &index.Untracked{Flags: index.ShowNormal}})
		w.install(x)
		if got := w.git(append([]string{"-c", "core.fsmonitor=false"}, strings.Fields(list)...)...); got != want {
			t.Errorf("git %s differs:\n%s", list, firstDifference(got, want))
		}
		if got := w.git("-c", "index.threads=true", "ls-files", "-s"); got != w.git("-c", "index.threads=1",
			"ls-files", "-s") {
			t.Error("git lists other entries with several threads")
		}
		if got := w.git("write-tree"); got != w.tree.String() {
			t.Errorf("git write-tree printed %s, want %s", got, w.tree)
		}
		w.git("fsck", "--cache", "--strict", "--no-dangling")
		w.git("update-index", "--refresh")
		w.git("diff-files", "--exit-code")
		if got := w.git("status", "--porcelain=v2"); got != "" {
			t.Errorf("git status printed %.300q", got)
		}
		// The index is also correct without the monitor.
		w.install(x)
		if got := w.git("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=keep", "status",
			"--porcelain=v2"); got != "" {
			t.Errorf("git status without the monitor printed %.300q", got)
		}
	})
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%q\n%q", x[i], y[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(x), len(y))
}

// TestFirstStatusReadsNoFiles checks that the first git status reads no file of the working tree, which is empty.
func TestFirstStatusReadsNoFiles(t *testing.T) {
	forAll(t, func(t *testing.T, f object.Format, version uint32) {
		w := clone(t, f, func(r *gittest.Repo, _ object.Format) error {
			_, err := r.Commit("main", map[string]gittest.File{
				".gitignore": {Data: []byte("*.o\n")}, "sub/.gitignore": {Data: []byte("*.a\n")},
				"sub/deep/f": {Data: []byte("f\n")},
				"other/f":    {Data: []byte("f\n")}, "x": {Data: []byte("x\n")},
			}, "ignore files")
			return err
		})
		w.older() // otherwise git rewrites the index, because files are as young as the index
		w.install(w.build(index.Options{Version: version, Token: "token:1",
			Untracked: &index.Untracked{Flags: index.ShowNormal}}))
		before, err := os.ReadFile(w.indexFile())
		if err != nil {
			t.Fatal(err)
		}
		w.git("config", "core.worktree", w.dir)
		entries, err := os.ReadDir(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != ".git" {
				if err := os.RemoveAll(filepath.Join(w.dir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := w.git("status", "--porcelain=v2"); got != "" {
			t.Errorf("git status printed %.300q", got)
		}
		if after, err := os.ReadFile(w.indexFile()); err != nil || !bytes.Equal(before, after) {
			t.Errorf("git status rewrote the index, %v", err)
		}
	})
}

// TestEmpty checks that an empty repository has an empty index.
func TestEmpty(t *testing.T) {
	forAll(t, func(t *testing.T, f object.Format, version uint32) {
		w := &world{t: t, dir: t.TempDir(), format: f}
		w.git("init", "--quiet", "--object-format="+f.String())
		b := index.NewBuilder(index.Options{Format: f, Version: version, Token: "token:1"})
		b.Dir("", object.ID{}, index.Stat{})
		x, err := b.Index()
		if err != nil {
			t.Fatal(err)
		}
		w.install(x)
		if got := w.git("status", "--porcelain"); got != "" {
			t.Errorf("git status printed %q", got)
		}
		if err := os.WriteFile(filepath.Join(w.dir, "f"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		w.git("add", "f")
		if got := w.git("status", "--porcelain"); got != "A  f" {
			t.Errorf("git status printed %q", got)
		}
	})
}

func TestBuilderRefusesWhatIsNoWalk(t *testing.T) {
	id := object.MustID(strings.Repeat("1", 40))
	for name, walk := range map[string]func(b *index.Builder){
		"no root":           func(b *index.Builder) { b.Add(index.Entry{Path: "f", Mode: object.ModeFile, ID: id}) },
		"unknown directory": func(b *index.Builder) { b.Dir("", id, index.Stat{}); b.Dir("a/b", id, index.Stat{}) },
		"two roots":         func(b *index.Builder) { b.Dir("", id, index.Stat{}); b.Dir("", id, index.Stat{}) },
		"out of order": func(b *index.Builder) {
			b.Dir("", id, index.Stat{})
			b.Add(index.Entry{Path: "b", Mode: object.ModeFile, ID: id})
			b.Add(index.Entry{Path: "a", Mode: object.ModeFile, ID: id})
		},
		"no id": func(b *index.Builder) {
			b.Dir("", id, index.Stat{})
			b.Add(index.Entry{Path: "b", Mode: object.ModeFile})
		},
	} {
		b := index.NewBuilder(index.Options{})
		walk(b)
		if _, err := b.WriteTo(&bytes.Buffer{}); err == nil {
			t.Errorf("index with %s was written, want an error", name)
		}
	}
}
