package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// usage is the number of resources of a process.
type usage struct {
	fds, threads, rss int // rss in KiB
}

func usageOf(t testing.TB, pid int) usage {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	u := usage{fds: len(fds)}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		n, _ := strconv.Atoi(strings.Fields(value + " 0")[0])
		switch key {
		case "Threads":
			u.threads = n
		case "VmRSS":
			u.rss = n
		}
	}
	return u
}

// stateFiles returns the number of files below the state directory.
func (w *world) stateFiles() (files int) {
	filepath.WalkDir(w.state, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return nil
	})
	return files
}

func TestManyMountsLeakNothing(t *testing.T) {
	w := newWorld(t)
	files := sample("leak")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	const warm, rounds = 30, 70 // memory and files are measured after both
	var before usage
	var filesBefore int
	settled := func() (u usage) { // idle connections and helper processes of the last mount end after a while
		u = usageOf(t, w.serving())
		for deadline := time.Now().Add(patience); before.fds > 0 && u.fds > before.fds+8 &&
			time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			u = usageOf(t, w.serving())
		}
		return u
	}
	for i := range rounds {
		dir := w.place("m")
		w.ok("mount", url, dir)
		if n := readAll(t, dir, subtree(files, fmt.Sprintf("d%d", i%6))); n > 0 {
			t.Fatalf("round %d: %d reads failed", i, n)
		}
		w.ok("unmount", dir)
		if i == warm {
			before, filesBefore = settled(), w.stateFiles()
		}
	}
	after, filesAfter := settled(), w.stateFiles()
	for deadline := time.Now().Add(patience); filesAfter > filesBefore &&
		time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		filesAfter = w.stateFiles() // the files of the last session may still be being removed
	}
	t.Logf("after %d mounts %+v and %d files, after %d %+v and %d", warm, before, filesBefore, rounds, after, filesAfter)
	if after.fds > before.fds+8 { // pools of pipes grow a little; a leak would be of 60
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.serving()))
		for _, l := range links {
			target, _ := os.Readlink(l)
			t.Logf("%s", target)
		}
		t.Errorf("open descriptors: got %d, were %d", after.fds, before.fds)
	}
	// On a busy machine Go starts threads that never end; a leak would be at least one for each mount.
	if after.threads > before.threads+(rounds-warm)/2 || after.rss > before.rss+24<<10 {
		t.Errorf("resources after the mounts: got %+v, was %+v", after, before)
	}
	if filesAfter > filesBefore {
		t.Errorf("files below the state directory: got %d, were %d", filesAfter, filesBefore)
	}
}
