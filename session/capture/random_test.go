package capture_test

import (
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "of the random edits; 0: another one every time")
	stepsFlag = flag.Int("steps", 150, "of the random edits")
)

var (
	dirNames  = []string{"a", "b", "build", "a-b", "deep", "node_modules"}
	fileNames = []string{"x.txt", "y.o", "z.sh", "x", "keep.o", "A.txt", ".gitignore", "ü.txt"}
	ruleLines = []string{"*.o", "build/", "!keep.o", "/a/x.txt", "node_modules", "*", "!.gitignore", "a/**", "!*/",
		"**/deep/*.txt", "x*", "# no", "", "b/*", "!b/x", `\!x`, "[xy].*", "z.s?", "/build", "x.txt ", "x.txt\r"}
)

// editor makes random changes in a world.
type editor struct {
	*world
	rng *rand.Rand
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// paths returns the existing paths for which want returns true, without the git directory.
func (e *editor) paths(want func(fs.FileInfo) bool) []string {
	var list []string
	filepath.WalkDir(e.plain, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(e.plain, path)
		if rel == ".git" {
			return fs.SkipDir
		}
		if st, err := d.Info(); err == nil && rel != "." && want(st) {
			list = append(list, rel)
		}
		return nil
	})
	return list
}

func isRegular(st fs.FileInfo) bool { return st.Mode().IsRegular() }
func isAny(fs.FileInfo) bool        { return true }

func (e *editor) randomPath(name string) string {
	var parts []string
	for range e.rng.IntN(3) {
		parts = append(parts, pick(e.rng, dirNames))
	}
	return strings.Join(append(parts, name), "/")
}

// fits reports whether a file can be created at a path: its parents are directories or do not exist, and the path
// itself is not a directory.
func (e *editor) fits(path string) bool {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		if st, err := os.Lstat(e.at(dir)); err == nil && !st.IsDir() {
			return false
		}
	}
	st, err := os.Lstat(e.at(path))
	return err != nil || st.Mode().IsRegular()
}

func (e *editor) text(path string) string {
	if strings.HasSuffix(path, ".gitignore") {
		var lines []string
		for range 1 + e.rng.IntN(3) {
			lines = append(lines, pick(e.rng, ruleLines))
		}
		return strings.Join(lines, "\n") + pick(e.rng, []string{"", "\n"})
	}
	return fmt.Sprintf("%d\n", e.rng.IntN(4))
}

// step makes one random change and returns its description.
func (e *editor) step() string {
	w := e.world
	switch k := e.rng.IntN(24); {
	case k < 8:
		path := e.randomPath(pick(e.rng, fileNames))
		if !e.fits(path) {
			return "nothing"
		}
		w.write(path, e.text(path))
		return "write " + path
	case k < 10:
		files := e.paths(isRegular)
		if len(files) == 0 {
			return "nothing"
		}
		path := pick(e.rng, files)
		w.write(path, e.text(path))
		return "rewrite " + path
	case k < 12:
		all := e.paths(isAny)
		if len(all) == 0 {
			return "nothing"
		}
		path := pick(e.rng, all)
		w.remove(path)
		return "remove " + path
	case k < 15:
		all := e.paths(isAny)
		if len(all) == 0 {
			return "nothing"
		}
		from, to := pick(e.rng, all), e.randomPath(pick(e.rng, append(dirNames, fileNames...)))
		if !e.fits(to) || strings.HasPrefix(to+"/", from+"/") || strings.HasSuffix(to, ".gitignore") {
			return "nothing"
		}
		if dir := filepath.Dir(to); dir != "." {
			if strings.HasPrefix(dir+"/", from+"/") {
				return "nothing"
			}
			w.mkdir(dir)
		}
		if _, err := os.Lstat(e.at(from)); err != nil {
			return "nothing"
		}
		if err := w.rename(from, to); err != nil {
			return "nothing"
		}
		return "rename " + from + " " + to
	case k < 16:
		files := e.paths(isRegular)
		if len(files) == 0 {
			return "nothing"
		}
		path := pick(e.rng, files)
		w.chmod(path, pick(e.rng, []uint32{0o644, 0o755, 0o700, 0o600}))
		return "chmod " + path
	case k < 17:
		path := e.randomPath("link")
		if _, err := os.Lstat(e.at(path)); err == nil || !e.fits(path) {
			return "nothing"
		}
		w.symlink(path, fmt.Sprint("target", e.rng.IntN(3)))
		return "link " + path
	case k < 18:
		path := e.randomPath("empty")
		if !e.fits(path) {
			return "nothing"
		}
		w.mkdir(path)
		return "mkdir " + path
	case k < 19:
		w.git(w.plain, "add", "-A")
		return "git add -A"
	case k < 20:
		files := e.paths(isRegular)
		if len(files) == 0 {
			return "nothing"
		}
		path := pick(e.rng, files)
		w.git(w.plain, "add", "-f", path)
		return "git add -f " + path
	case k < 21:
		w.git(w.plain, "commit", "-q", "--allow-empty", "-m", "c")
		return "git commit"
	case k < 22:
		must(w.t, os.WriteFile(w.at(".git/info/exclude"), []byte(pick(e.rng, ruleLines)+"\n"), 0o644))
		return "info/exclude"
	case k < 23:
		files := strings.Fields(w.git(w.plain, "-c", "core.quotePath=false", "ls-files"))
		if len(files) == 0 {
			return "nothing"
		}
		path := pick(e.rng, files)
		if err := w.gitMay("rm", "-q", "-f", "--cached", "--", path); err != nil {
			w.t.Fatal(err)
		}
		return "git rm --cached " + path
	}
	w.git(w.plain, "reset", "-q")
	return "git reset"
}

// TestCheckpointsAreWhatGitWouldCommit checks that after random changes of files, ignore rules and index, the tree of a
// checkpoint is the tree that git would commit. From time to time, the process is replaced by another.
func TestCheckpointsAreWhatGitWouldCommit(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			seed := *seedFlag
			if seed == 0 {
				seed = uint64(time.Now().UnixNano())
			}
			t.Logf("-seed %d", seed)
			randomEdits(t, f, seed)
		})
	}
}

func randomEdits(t *testing.T, f object.Format, seed uint64) {
	e := &editor{world: newWorld(t, f, map[string]gittest.File{
		"README": text("hello\n"), "a/x.txt": text("1\n"), "a/deep/x.txt": text("2\n"), "b/y.o": text("3\n"),
		"build/z.sh": {Data: []byte("z\n"), Mode: "100755"},
		".gitignore": text("*.o\nnode_modules/\n"), "b/link": {Data: []byte("target"), Mode: "120000"},
	}), rng: rand.New(rand.NewPCG(seed, 1))}
	var did []string
	for i := range *stepsFlag {
		did = append(did, e.step())
		if e.rng.IntN(3) > 0 {
			continue
		}
		if e.rng.IntN(10) == 0 {
			e.restart()
			did = append(did, "restart")
		}
		p, r := e.check(fmt.Sprintf("step %d: %s", i, strings.Join(did, "; ")))
		did = nil
		if again, r2 := e.checkpoint(session.Idle); r2.Made || again.ID != p.ID {
			t.Fatalf("step %d: second checkpoint without a change: got %+v %+v", i, p, r)
		}
	}
	e.git(filepath.Join(e.dir, "session.git"), "fsck", "--strict")
	checkpoints, err := e.repo.Checkpoints(0)
	if err != nil || len(checkpoints) == 0 {
		t.Fatal(err)
	}
	for i, p := range checkpoints[:len(checkpoints)-1] {
		if p.Prev != checkpoints[i+1].ID {
			t.Errorf("predecessor of %s: got %s, want %s", p.ID, checkpoints[i+1].ID, p.Prev)
		}
	}
}

// restart closes the working tree and opens it again, as a new process does.
func (w *world) restart() {
	w.t.Helper()
	must(w.t, w.tree.Close())
	w.openTree()
	w.openCapturer()
}
