package integration

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// rounds is a tree whose files all hold the number of the round.
func (u *upstream) rounds(n int) object.ID {
	u.w.Helper()
	u.round++
	files := map[string]gittest.File{}
	for i := range n {
		files[fmt.Sprintf("r%02d/f%04d", i%30, i)] = gittest.File{Data: fmt.Appendf(nil, "round %d\n", u.round)}
	}
	return u.w.commit(u.repo, files)
}

// If the worker is killed while the mount follows the branch, its successor shows the old tree or the new one
// completely, and continues to follow.
func TestFollowKilled(t *testing.T) {
	const files = 600
	for _, kind := range []string{"read-only", "writable"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			u := w.upstream()
			u.rounds(files)
			args := []string{"--follow", "--follow-interval", "1h", "--prefetch", "none", "--history", "full"}
			if kind == "read-only" {
				args = append(args, "--read-only")
			}
			url := u.URL("r.git")
			m := w.mount(url, args...)
			m.await("the remote was asked once",
				func(st control.MountStatus) bool { return st.Follow != nil && st.Follow.Commit != "" })
			// whole reads files from both ends of the tree, and compares git's view of all.
			whole := func(when string, old, tip object.ID) {
				t.Helper()
				var head, found string
				w.until(when+": the tree is whole", func() bool {
					head, found = w.git(m.Dir, "rev-parse", "HEAD"), ""
					want := w.git(u.repo.Path, "show", head+":r00/f0000")
					for i := range 30 {
						text, err := os.ReadFile(m.path(fmt.Sprintf("r%02d/f%04d", i, i*17%files/30*30+i)))
						if err != nil || strings.TrimSpace(string(text)) != want {
							found = fmt.Sprintf("r%02d: %q (%v), want %q of HEAD", i, text, err, want)
							return false
						}
					}
					found = w.git(m.Dir, "status", "--porcelain")
					return found == ""
				})
				if head != old.String() && head != tip.String() {
					t.Errorf("HEAD %s: got %s, want %s or %s", when, head, old, tip)
				}
			}
			old := must[object.ID](t)(object.ParseID(w.git(m.Dir, "rev-parse", "HEAD")))
			tip := u.rounds(files)
			start := time.Now()
			w.ok("refresh", m.Dir)
			took := time.Since(start)
			whole("after a move", old, tip)
			for i, after := range []time.Duration{took / 2, took * 4 / 5} {
				old, tip = tip, u.rounds(files)
				refreshed := make(chan result, 1)
				go func() { refreshed <- w.afs("refresh", m.Dir) }()
				time.Sleep(after) // somewhere in the move
				pid := w.serving()
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				<-refreshed
				w.until("another process serves", func() bool { s := w.victim().Serving(); return s != 0 && s != pid })
				whole(fmt.Sprintf("after kill %d", i+1), old, tip)
				w.ok("refresh", m.Dir)
				m.isAt(u, tip)
			}
			// The same when the whole daemon is killed, so that no worker takes over.
			old, tip = tip, u.rounds(files)
			refreshed := make(chan result, 1)
			go func() { refreshed <- w.afs("refresh", m.Dir) }()
			time.Sleep(took * 3 / 4)
			w.killDaemon()
			<-refreshed
			w.ok(append([]string{"mount", url, m.Dir}, args...)...)
			whole("after the daemon was killed", old, tip)
			w.ok("refresh", m.Dir)
			m.isAt(u, tip)
		})
	}
}
