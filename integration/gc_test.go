package integration

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// mostPacks is the largest number of packs in one directory at any time.
const mostPacks = 30

// packsOf lists the packs of a git directory with their sizes.
func (w *world) packsOf(gitDir string) (packs []string) {
	w.Helper()
	for _, e := range must[[]os.DirEntry](w)(os.ReadDir(filepath.Join(gitDir, "objects", "pack"))) {
		if st, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".pack") {
			packs = append(packs, fmt.Sprintf("%s %d", e.Name(), st.Size()))
		}
	}
	return packs
}

// workIn makes a mount of a repository with all kinds of local git data: commits on branches that exist nowhere else,
// a tag, a stash, staged and other changes.
func (w *world) workIn(m mounted) {
	w.Helper()
	write := func(name, text string) {
		w.Helper()
		if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	git := func(args ...string) { w.Helper(); w.git(m.Dir, args...) }
	git("switch", "--quiet", "--create", "mine")
	for i := range 3 {
		write("mine.txt", strings.Repeat(fmt.Sprintf("commit %d\n", i), 50))
		git("add", "mine.txt")
		git("commit", "--quiet", "--message", fmt.Sprint("mine ", i))
	}
	git("tag", "--annotate", "--message", "mine", "my-tag")
	git("branch", "other", "HEAD~1")
	write("mine.txt", "stashed\n")
	write("untracked", "and stashed\n")
	git("stash", "push", "--quiet", "--include-untracked")
	write("staged.txt", "staged\n")
	git("add", "staged.txt")
	write("mine.txt", "changed\n")
	write("new.txt", "new\n")
}

// inGit describes the data that maintenance must not change: refs, owned objects, the state of the working tree.
func (m mounted) inGit() string {
	m.w.Helper()
	own := strings.Split(m.w.git(m.Dir, "rev-list", "--objects", "--all", "--reflog", "--indexed-objects", "--not",
		"--remotes"), "\n")
	slices.Sort(own)
	return m.w.git(m.Dir, "for-each-ref") + "\n" + m.w.git(m.Dir, "stash", "list", "--format=%gd %H %gs") + "\n" +
		strings.Join(own, "\n") + "\n" +
		m.w.git(m.Dir, "status", "--porcelain=v2") + "\n" + m.w.git(m.Dir, "log", "--all", "--format=%H %T %s")
}

// Every maintenance command of git in a mount keeps the user's data, leaves the store unchanged, and git fsck finds
// no error afterwards.
func TestTidyingUpLosesNothing(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.storied(f)
			m := w.mount(w.serve(gittest.ServerOptions{}).URL("storied.git"), "--history", "full", "--prefetch", "none")
			w.workIn(m)
			before, files := m.inGit(), w.treeSum(m.Dir)
			w.git(m.Dir, "cat-file", "-p", "HEAD:mine.txt")
			store := w.packsOf(w.storeGit())
			for _, command := range []string{
				"fsck", "gc", "repack -d", "repack -a -d", "repack -a -d -l", "prune", "prune --expire=now", "pack-refs --all",
				"commit-graph write --reachable",
				"reflog expire --expire=never --all", "maintenance run",
				"maintenance run --task=commit-graph --task=loose-objects --task=incremental-repack",
				"multi-pack-index write", "gc --prune=now --aggressive", "fsck --full",
			} {
				args := strings.Fields(command)
				if args[0] == "fsck" {
					args = append(args, "--no-progress", "--no-dangling")
				}
				if out := w.git(m.Dir, args...); args[0] == "fsck" && out != "" {
					t.Errorf("git %s printed %s", command, out)
				}
				if after := m.inGit(); after != before {
					t.Fatalf("after git %s: %s\nbefore: %s", command, after, before)
				}
				if after := w.packsOf(w.storeGit()); !slices.Equal(after, store) {
					t.Errorf("after git %s the store has %q, before %q", command, after, store)
				}
				if n := len(w.packsOf(m.gitDir())); n >= mostPacks {
					t.Errorf("got %d packs after git %s", n, command)
				}
			}
			if after := w.treeSum(m.Dir); after != files {
				t.Error("contents of files changed")
			}
			w.git(m.Dir, "reset", "--quiet", "--hard")
			w.git(m.Dir, "clean", "--quiet", "--force")
			w.git(m.Dir, "stash", "pop", "--quiet")
			if got := must[[]byte](w)(os.ReadFile(m.path("mine.txt"))); string(got) != "stashed\n" {
				t.Errorf("the stash contains %q", got)
			}
		})
	}
}

// treeSum sums up the files of a directory.
func (w *world) treeSum(dir string) string {
	w.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == ".git" {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s\x00%d\x00%s", path, len(content), content)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// objectsIn lists the objects that a repository has or misses.
func (w *world) objectsIn(dir string) (ids []string) {
	w.Helper()
	for line := range strings.Lines(w.git(dir, "rev-list", "--objects", "--all", "--missing=print")) {
		ids = append(ids, strings.TrimPrefix(strings.Fields(line)[0], "?"))
	}
	slices.Sort(ids)
	return ids
}

// A script that asks git for one old content after the other leaves few packs.
func TestManySmallFaultsLeaveFewPacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("faults.git", object.SHA1)
	const n = 2 * mostPacks
	old, now := map[string]gittest.File{}, map[string]gittest.File{}
	for i := range n {
		name := fmt.Sprintf("d%d/f%d.txt", i%7, i)
		old[name] = gittest.File{Data: fmt.Appendf(nil, "old content %d\n%s", i, strings.Repeat("x", i))}
		now[name] = gittest.File{Data: fmt.Appendf(nil, "new %d\n", i)}
	}
	first := w.commit(r, old)
	w.commit(r, now)
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("faults.git"), "--history", "full", "--prefetch", "none")
	most := 0
	names := slices.Sorted(maps.Keys(old))
	revs := []string{"rev-parse"}
	for _, name := range names {
		revs = append(revs, first.String()+":"+name)
	}
	for i, id := range strings.Fields(w.git(r.Path, revs...)) {
		// Like a tool that does not announce which objects it will read next.
		name := names[i]
		if got, want := w.git(m.Dir, "cat-file", "-p", id), strings.TrimSpace(string(old[name].Data)); got != want {
			t.Fatalf("%s is %q, want %q", name, got, want)
		}
		for _, dir := range []string{m.gitDir(), w.storeGit()} {
			most = max(most, len(w.packsOf(dir)))
		}
	}
	if most > mostPacks+12 { // a client that fetches faster than packs are joined has to wait
		t.Errorf("got %d packs in one directory", most)
	}
	t.Logf("at most %d packs in one directory", most)
	w.until("packs are joined",
		func() bool { return len(w.packsOf(w.storeGit())) <= 12 && len(w.packsOf(m.gitDir())) <= 12 })
	if out := w.git(m.Dir, "fsck", "--no-progress", "--no-dangling"); out != "" {
		t.Errorf("git fsck: %s", out)
	}
	if got, want := w.objectsIn(m.Dir), w.objectsIn(r.Path); !slices.Equal(got, want) {
		t.Errorf("git lists %d objects, the remote has %d", len(got), len(want))
	}
	show, want := []string{"-c", "remote.artifactfs.promisor=false", "show"}, ""
	for _, name := range names { // all old versions can still be read
		show, want = append(show, first.String()+":"+name), want+string(old[name].Data)
	}
	if got := w.git(m.Dir, show...); got != strings.TrimSpace(want) {
		t.Errorf("old versions: got %q, want %q", got, want)
	}
}

// Git's everyday commands start no process that repacks.
func TestNothingRepacksBehindACommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.storied(object.SHA1)
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("storied.git"), "--history", "full", "--prefetch", "none")
	w.workIn(m)
	w.git(m.Dir, "commit", "--quiet", "--all", "--message", "all")
	must[object.ID](w)(r.Commit("main", map[string]gittest.File{"upstream.txt": {Data: []byte("up\n")}}, "Upstream"))
	trace := w.place("trace")
	for _, command := range []string{
		"fetch --quiet", "commit --quiet --allow-empty --message empty", "merge --quiet --no-edit origin/main",
		"rebase --quiet --force-rebase HEAD~1",
		"format-patch --quiet -1 -o " + w.root, "gc --auto", "maintenance run --auto",
		"cherry-pick --keep-redundant-commits HEAD", "pull --quiet --no-rebase origin main", "stash drop --quiet",
	} {
		cmd := exec.Command("git", append([]string{"-C", m.Dir}, strings.Fields(command)...)...)
		cmd.Env = append(os.Environ(), "GIT_TRACE2_EVENT="+trace)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", command, err, out)
		}
	}
	f := must[*os.File](w)(os.Open(trace))
	defer f.Close()
	started := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		var e struct {
			Event string
			Argv  []string
		}
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event != "child_start" {
			continue
		}
		started++
		for _, arg := range e.Argv {
			if slices.Contains([]string{"gc", "repack", "pack-objects", "maintenance", "prune", "multi-pack-index"}, arg) {
				t.Errorf("git started the process %q", e.Argv)
			}
		}
	}
	if started == 0 {
		t.Error("the trace has no process: no command was traced")
	}
}

// Files of a commit that was made in the mount are shown without a request to the remote, whether the objects are loose
// or packed.
func TestLocalCommitIsShownWithoutTheRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.storied(object.SHA1)
	s := w.serve(gittest.ServerOptions{})
	m := w.mount(s.URL("storied.git"), "--history", "full", "--prefetch", "none")
	const text = "nobody else has this\n"
	w.git(m.Dir, "switch", "--quiet", "--create", "mine")
	if err := os.MkdirAll(m.path("own/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path("own/deep/file.txt"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	w.git(m.Dir, "add", "own")
	w.git(m.Dir, "commit", "--quiet", "--message", "own")
	w.git(m.Dir, "switch", "--quiet", "main")
	for _, packed := range []bool{false, true} {
		if packed {
			w.ok("switch", "-C", m.Dir, "main")
			w.git(m.Dir, "gc", "--quiet")
		}
		s.forget()
		w.ok("switch", "-C", m.Dir, "mine")
		if got := must[[]byte](w)(os.ReadFile(m.path("own/deep/file.txt"))); string(got) != text {
			t.Errorf("packed %v: the file contains %q", packed, got)
		}
		if out := w.git(m.Dir, "status", "--porcelain"); out != "" {
			t.Errorf("packed %v: git status prints %q", packed, out)
		}
		for _, r := range s.quiet() {
			if r.Objects > 0 {
				t.Errorf("packed %v: got requests to the remote: %+v", packed, r)
			}
		}
	}
	m.await("nothing failed", func(s control.MountStatus) bool { return s.State == control.StateMounted })
}
