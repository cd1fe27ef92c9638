package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A takeover needs no free disk space: while the disk of the state directory has no free block or no free inode, each
// successor of a killed worker serves the mounts, and writes work again once there is space.
func TestTakeoverOnFullDisk(t *testing.T) {
	const kills = 12 // more than the number of workers that may fail one after the other
	for _, c := range []struct {
		name, disk string
		fill       func(w *world, m mounted) (free func())
	}{
		{"blocks", "size=48m,mode=700", (*world).fillBlocks},
		{"inodes", "size=128m,nr_inodes=600,mode=700", (*world).fillInodes},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldOnDisk(t, c.disk)
			w.commit(w.repo("r.git", object.SHA1), map[string]gittest.File{"base": {Data: []byte("base\n")},
				"changed": {Data: []byte("before\n")}})
			m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
			check2(t, os.WriteFile(m.path("changed"), []byte("after\n"), 0o644))
			check2(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
			want := map[string]string{"base": "base\n", "changed": "after\n", "new": "new\n"}
			reads := func(when string) {
				t.Helper()
				for name, text := range want {
					if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != text {
						t.Fatalf("%s of %s: got %q (%v), want %q", name, when, got, err, text)
					}
				}
			}
			reads("a new mount")
			free := c.fill(w, m)
			for n := range kills {
				pid := w.daemonStatus().PID
				check2(t, syscall.Kill(pid, syscall.SIGKILL))
				w.until("another worker serves", func() bool { return w.daemonStatus().PID != pid })
				w.dropCaches()
				reads(fmt.Sprintf("a mount after kill %d", n+1))
			}
			big := bytes.Repeat([]byte("big"), 20_000)
			var err error
			for i := 0; err == nil && i < 500; i++ { // a killed process may have freed some space
				err = writeFile(m.path(fmt.Sprint("more-", i)), big)
			}
			wants(t, "writing files after the kills", err, unix.ENOSPC)
			free()
			check2(t, writeFile(m.path("big"), big))
			want["big"] = string(big)
			pid := w.daemonStatus().PID
			check2(t, syscall.Kill(pid, syscall.SIGKILL))
			reads("a mount with room again")
			m.await("status has no error after space was freed", func(st control.MountStatus) bool { return st.Error == "" })
		})
	}
}

// fillBlocks allocates all blocks, including those that the mount has reserved for changes of names.
func (w *world) fillBlocks(m mounted) (free func()) {
	w.Helper()
	free = w.fill()
	for i := 0; ; i++ {
		err := os.WriteFile(m.path(fmt.Sprintf("%d-%s", i, strings.Repeat("x", 200))), nil, 0o644)
		if errors.Is(err, unix.ENOSPC) {
			return free
		}
		check2(w, err)
	}
}

// fillInodes allocates all inodes, including that of the log file, which was removed to make space.
func (w *world) fillInodes(mounted) (free func()) {
	w.Helper()
	check2(w, os.RemoveAll(filepath.Dir(w.logFile())))
	dir := filepath.Join(w.state, "filler")
	check2(w, os.Mkdir(dir, 0o700))
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return func() { check2(w, os.RemoveAll(dir)) }
		}
		check2(w, err)
	}
}
