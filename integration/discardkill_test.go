package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// If the worker is killed while a session is discarded, also while it pushes, the session is discarded all the same:
// nothing of it is left here or on the session remote, and it can be restored.
func TestDiscardKilled(t *testing.T) {
	for _, mode := range []string{"thin", "shared"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w, url, c := newSessionRemote(t, mode)
			own := w.refsLeft(c.Path)
			var left []string
			var r result
			defer func() {
				if t.Failed() {
					t.Logf("the last refs on the session remote were %v, want %v; the last answer was %s", left, own, r)
				}
			}()
			for i := range 12 {
				name := fmt.Sprintf("work%d", i)
				m := w.bare(url, append(c.flags(name), "--wait", "git", "--checkpoint", "interval=1h")...)
				w.sh(m.Dir, "echo one >one && git add one && git commit -qm one && echo two >>one")
				m.checkpoint("--sync")
				w.sh(m.Dir, "git commit -qam two; echo unsaved >unsaved")
				before := w.look(m.Dir)
				pid := w.serving()
				discarded := make(chan result, 1)
				go func() { discarded <- w.afs("unmount", "--discard", "--yes", m.Dir) }()
				time.Sleep(time.Duration(i) * 15 * time.Millisecond)
				syscall.Kill(pid, syscall.SIGKILL)
				r = <-discarded
				back := "artifactfs session undelete " + name + " --mount " + m.Dir + " --deleted "
				if r.code != 0 || !strings.HasPrefix(restoring(r.stderr), back) {
					t.Errorf("kill %d: unmount --discard: got %s", i, r)
				}
				// The server may start a process for the last push of the killed process only now.
				w.until(fmt.Sprintf("kill %d: the session has no refs on the session remote", i), func() bool {
					left = w.refsLeft(c.Path)
					return !receiving(c.Path) && slices.Equal(left, own)
				})
				if exists(filepath.Join(w.state, "mounts", name)) {
					t.Errorf("kill %d: the session is still in the state directory", i)
				}
				var there control.SessionTrashReply
				w.json(&there, "session", "list", "--deleted")
				if !slices.ContainsFunc(there.Deleted, func(d control.DeletedSession) bool { return d.Name == name }) {
					t.Errorf("kill %d: session list --deleted: got %+v, want %s", i, there.Deleted, name)
				}
				// The server may have the last request of the killed process before it, and hold locks.
				w.until("the session is restored", func() bool { return w.afs("session", "undelete", name).code == 0 })
				again := w.bare(url, append(c.flags(name), "--wait", "git")...)
				w.same(fmt.Sprintf("kill %d: brought back", i), before, w.look(again.Dir))
				w.ok("unmount", "--discard", "--yes", again.Dir)
				if left := w.refsLeft(c.Path); !slices.Equal(left, own) {
					t.Errorf("kill %d: refs left on the session remote after the second discard: got %v, want %v", i, left, own)
				}
			}
			w.sound(c.Path)
		})
	}
}

// receiving reports whether a process is working on a push to the repository at path.
func receiving(path string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(lines, func(name string) bool {
		text, _ := os.ReadFile(name)
		return bytes.Contains(text, []byte("receive-pack")) && bytes.Contains(text, []byte(filepath.Base(filepath.Dir(path))))
	})
}
