package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
)

// sessionKills is the number of times that all processes are killed; `make bench BENCH="-session -only kills"` kills
// more often.
var sessionKills = envInt("AFS_SESSION_KILLS", 3)

// policyInterval is the longest time that the default policy leaves changes without a checkpoint, and the delay of a
// busy machine.
const policyInterval = 10*time.Second + 30*time.Second

// After a kill at any moment, the session can be resumed from the last checkpoint with a new, empty state directory.
func TestSessionOutlivesEverything(t *testing.T) {
	for _, kind := range []string{"embedded", "http"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			r := w.repo("r.git", object.SHA1)
			must[object.ID](t)(r.Sized(8, 6))
			w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte("build/\n")}})
			j := workday.Journey{Binary: binary, Base: w.place("j"), Remote: w.serve(gittest.ServerOptions{}).URL("r.git"),
				Session: "work", Seed: uint64(modelSeed), Longest: 4 * time.Second, Interval: policyInterval, Log: t.Logf}
			check(t, os.Mkdir(j.Base, 0o755))
			j.Objects = []string{filepath.Join(r.Path, "objects")}
			var c *carried
			if kind == "http" {
				c = w.sessionRemote(kind, nil)
				t.Setenv("ARTIFACTFS_SESSION_BASE", "seed") // so that stock git can read the session remote for the comparison
				j.Saved, j.Copy = c.arg, c.Path
				j.Objects = append(j.Objects, filepath.Join(c.Path, "objects"))
			}
			tally, err := j.Run(t.Context(), sessionKills)
			for _, f := range tally.Faults {
				t.Error(f)
			}
			check(t, err)
			t.Logf("seed %d: %s", j.Seed, tally)
			if n := tally.Found[workday.Undecided]; n > 0 {
				t.Errorf("%d resumed sessions could not be compared", n)
			}
			if c == nil || t.Failed() {
				return
			}
			w.sound(c.Path)
			for _, id := range slices.Compact(tally.Commits) {
				// if nothing was pushed, the commit is the base, on the mounted remote
				if !w.has(c.Path, id) && !w.has(r.Path, id) {
					t.Errorf("commit %s is not on the session remote", id)
				}
			}
		})
	}
}

// A session can be resumed from its repository in another state directory, which has neither history nor contents.
func TestSessionOfAnEmptyStoreResumes(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	must[[]object.ID](t)(r.History(3))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--session", "work", "--wait", "git")
	w.sh(m.Dir, "mv d0002/f0002.txt moved; mv d0003 elsewhere")
	m.checkpoint()
	before := w.look(m.Dir)
	w.unmount(m)
	o := w.elsewhere()
	again := o.bare(url, "--session", "work", "--session-remote", filepath.Join(w.state, "mounts", m.ID, "session.git"),
		"--wait", "git")
	w.same("resumed elsewhere", before, o.look(again.Dir))
	o.sh(again.Dir, "cat moved elsewhere/* >/dev/null && git stash -qu && git log --oneline -2")
}

// Changes that only git's own files have are saved, too, even if no file of the working tree has changed.
func TestWhatOnlyGitKnowsIsKept(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	must[[]object.ID](t)(r.History(3))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for name, script := range map[string]string{
		"flag": "git update-index --assume-unchanged d0002/f0002.txt", "untracked": "git rm -q --cached d0002/f0002.txt",
		"detached": "git switch -q --detach",
		"branch":   "git switch -q -c topic", "tag": "git tag mine", "reset": "git reset -q --soft HEAD~1",
		"bisect": "git bisect start",
	} {
		m := w.mount(url, "--session", name, "--wait", "all")
		w.sh(m.Dir, "git status >/dev/null; git log -1 >/dev/null")
		w.sh(m.Dir, script)
		m.sync()
		before := w.look(m.Dir)
		w.unmount(m)
		o := w.elsewhere()
		again := o.bare(url, "--session", name, "--session-remote", filepath.Join(w.state, "mounts", m.ID, "session.git"),
			"--wait", "git")
		w.same(name, before, o.look(again.Dir))
		o.unmount(again)
	}
}
