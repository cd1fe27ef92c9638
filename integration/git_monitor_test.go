package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// The monitor test makes the same random changes on both sides and runs git status after each step. Git relies on the
// daemon's list of changed paths, so git status is wrong for a file whose change the daemon did not report.

var monitorSteps = envInt("AFS_MONITOR_STEPS", 120)

// edits makes random changes. It lists the clone to find the existing paths.
type edits struct {
	p     *pair
	rnd   *rand.Rand
	open  [2]*os.File // the same file on both sides, kept open and written to now and then
	name  string      // of it
	steps []string
}

// paths lists what is below the clone's top: files of any kind, or directories.
func (e *edits) paths(dirs bool) []string {
	var all []string
	filepath.WalkDir(e.p.clone.top(), func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(e.p.clone.top(), path)
		switch {
		case err != nil || rel == ".":
		case rel == ".git":
			return filepath.SkipDir
		case rel == "sub" || strings.HasPrefix(filepath.Base(rel), ".git"): // attributes would change what the others mean
		case d.IsDir() == dirs:
			all = append(all, rel)
		}
		return nil
	})
	return all
}

func (e *edits) pick(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return all[e.rnd.IntN(len(all))]
}

// fresh returns a path that may be new, in a directory that exists or is created.
func (e *edits) fresh() string {
	dir := e.pick(append(e.paths(true), ".", "made", "made/deep"))
	return filepath.Join(dir, []string{"a", "b.c", "c.o", "d d"}[e.rnd.IntN(4)])
}

// next chooses a change: its description, and the function that makes it on one side.
func (e *edits) next() (string, func(side int, top string) error) {
	file, dir, to := e.pick(e.paths(false)), e.pick(e.paths(true)), e.fresh()
	n := e.rnd.IntN(1000)
	at := func(top, p string) string { return filepath.Join(top, p) }
	parents := func(top string) error { return os.MkdirAll(filepath.Dir(at(top, to)), 0o755) }
	switch k := e.rnd.IntN(18); k {
	case 0, 1:
		return "append to " + file, func(_ int, top string) error {
			f, err := os.OpenFile(at(top, file), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = fmt.Fprintf(f, "appended %d\n", n)
			return err
		}
	case 2:
		return "overwrite " + file, func(_ int, top string) error {
			return os.WriteFile(at(top, file), fmt.Appendf(nil, "overwritten %d\n", n), 0o644)
		}
	case 3:
		return "change a byte of " + file, func(_ int, top string) error {
			f, err := os.OpenFile(at(top, file), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte{byte('a' + n%26)}, int64(n%5))
			return err
		}
	case 4:
		return "replace " + file + " as editors do", func(_ int, top string) error {
			if err := os.WriteFile(at(top, file)+".new", fmt.Appendf(nil, "replaced %d\n", n), 0o644); err != nil {
				return err
			}
			return os.Rename(at(top, file)+".new", at(top, file))
		}
	case 5:
		return "touch " + file, func(_ int, top string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, at(top, file),
				[]unix.Timespec{{Sec: 1_740_000_000 + int64(n)}, {Sec: 1_740_000_000 + int64(n)}}, unix.AT_SYMLINK_NOFOLLOW)
		}
	case 6:
		return "chmod " + file,
			func(_ int, top string) error { return unix.Chmod(at(top, file), []uint32{0o644, 0o755}[n%2]) }
	case 7:
		return "remove " + file, func(_ int, top string) error { return os.Remove(at(top, file)) }
	case 8:
		if n%4 > 0 { // otherwise few files would be left
			dir = filepath.Join("vendor", fmt.Sprintf("p%d", n%3))
		}
		return "remove directory " + dir, func(_ int, top string) error { return os.RemoveAll(at(top, dir)) }
	case 9, 10:
		return "create " + to, func(_ int, top string) error {
			if err := parents(top); err != nil {
				return err
			}
			return os.WriteFile(at(top, to), fmt.Appendf(nil, "created %d\n", n), 0o644)
		}
	case 11:
		return "rename " + file + " to " + to, func(_ int, top string) error {
			if err := parents(top); err != nil {
				return err
			}
			return os.Rename(at(top, file), at(top, to))
		}
	case 12, 13:
		return "rename directory " + dir + " to " + to, func(_ int, top string) error {
			if err := parents(top); err != nil {
				return err
			}
			return os.Rename(at(top, dir), at(top, to))
		}
	case 14:
		return "replace " + file + " by a link", func(_ int, top string) error {
			os.Remove(at(top, file))
			return os.Symlink(fmt.Sprintf("to-%d", n), at(top, file))
		}
	case 15:
		return "link " + file + " to " + to, func(_ int, top string) error {
			if err := parents(top); err != nil {
				return err
			}
			return os.Link(at(top, file), at(top, to))
		}
	case 16:
		return "make " + file + " a directory", func(_ int, top string) error {
			os.Remove(at(top, file))
			os.Mkdir(at(top, file), 0o755)
			return os.WriteFile(filepath.Join(at(top, file), "in"), fmt.Appendf(nil, "in %d\n", n), 0o644)
		}
	default:
		if e.open[0] != nil {
			return "write to the open file", func(side int, top string) error {
				_, err := fmt.Fprintf(e.open[side], "still written to %d\n", n)
				return err
			}
		}
		return "open " + file, func(side int, top string) error {
			f, err := os.OpenFile(at(top, file), os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				e.open[side], e.name = f, file
			}
			return err
		}
	}
}

func (e *edits) close() {
	for i, f := range e.open {
		if f != nil {
			f.Close()
		}
		e.open[i] = nil
	}
}

// one makes a change on both sides.
func (e *edits) one() error {
	what, change := e.next()
	e.steps = append(e.steps, what)
	got, want := change(0, e.p.mount.top()), change(1, e.p.clone.top())
	if (got == nil) != (want == nil) {
		return fmt.Errorf("the mount answered %v, the clone %v", got, want)
	}
	if (e.open[0] == nil) != (e.open[1] == nil) {
		e.close()
	}
	return nil
}

// look compares the output of git commands. Now and then git scans all files, as it does without the file system
// monitor.
func (e *edits) look(n int) error {
	// A checkout rewrites files whose lstat has changed, for example the other names of a file that lost one hard link: in
	// a clone the file is then a separate one, but with a monitor, which reports changed contents only, the file stays
	// linked.
	const unlinked = `find . -path ./.git -prune -o -type f -links +1 -exec sh -c 'cp -p "$1" "$1.own" && mv "$1.own" "$1"' _ {} \;`
	lines := []string{"git status --porcelain=v2 --untracked-files=" + []string{"all", "normal", "no"}[e.rnd.IntN(3)]}
	switch e.rnd.IntN(24) {
	case 0:
		lines = append(lines, "git add -A", "git commit -q -m step; git status --porcelain",
			"git rev-parse HEAD; git ls-tree -r -t HEAD")
	case 1:
		lines = append(lines, unlinked, "git stash -q -u; git status --porcelain; git stash pop -q; git status --porcelain")
	case 2:
		lines = append(lines, "git diff --stat")
	case 3:
		lines = append(lines, unlinked, "git reset -q --hard; git clean -fdq; git status --porcelain")
		e.close() // so that the file is removed on both sides or on none
	case 4:
		lines = append(lines, "git status --porcelain --ignored",
			"git -c core.fsmonitor=false -c core.untrackedCache=false status --porcelain --ignored")
	}
	for _, line := range lines {
		e.steps = append(e.steps, line)
		got, err := e.p.mount.step(n, line)
		if err != nil {
			return err
		}
		want, err := e.p.clone.step(n, line)
		if err != nil {
			return err
		}
		if err := sameAnswers([]answer{got}, []answer{want}); err != nil {
			return err
		}
	}
	return nil
}

// flush makes the kernel write back its dirty pages, which are lost with a mount whose daemon is killed.
func (e *edits) flush() error {
	if e.open[0] != nil {
		if err := e.open[0].Sync(); err != nil {
			return err
		}
	}
	fd, err := open(e.p.mount.top(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

func TestStatusTellsEveryChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := newGitFixture(w, object.SHA1)
	p := x.newPair(t, scenario{})
	e := &edits{p: p, rnd: rand.New(rand.NewPCG(uint64(modelSeed), 7))}
	defer e.close()
	t.Logf("seed %d (AFS_MODEL_SEED)", modelSeed)
	for n := range monitorSteps {
		var err error
		switch {
		case n%100 == 60:
			e.steps = append(e.steps, "unmount and mount")
			e.close()
			err = p.unmounted()
		case n%100 == 90:
			e.steps = append(e.steps, "kill and mount")
			if err = e.flush(); err == nil {
				e.close()
				err = p.killed(t)
			}
		default:
			for range 1 + e.rnd.IntN(3) {
				if err = e.one(); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = e.look(n)
		}
		if err != nil {
			t.Fatalf("seed %d, step %d: %v\nthe last steps:\n%s", modelSeed, n, err,
				strings.Join(e.steps[max(0, len(e.steps)-modelHistory):], "\n"))
		}
	}
	if err := p.same(monitorSteps, "git status --porcelain"); err != nil {
		t.Errorf("seed %d: compare at the end: %v", modelSeed, err)
	}
}
