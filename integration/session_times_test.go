package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// fileTimes returns the times of all paths of a mount that a checkpoint contains.
func (m mounted) fileTimes() string {
	m.w.Helper()
	return m.w.sh(m.Dir, `find . \( -name .git -o -name build \) -prune -o -printf '%P %A@ %T@ %C@\n' | sort`)
}

// wantTimes compares the times of a mount with those in the parameter want.
func (m mounted) wantTimes(what, want string) {
	m.w.Helper()
	got := strings.Split(m.fileTimes(), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(got) || got[i] != line {
			m.w.Fatalf("%s: times in line %d of %d: got %q, want %q", what, i, len(got), got[min(i, len(got)-1)], line)
		}
	}
}

// fork forks the session of a mount.
func (m mounted) fork(name string, args ...string) mounted {
	m.w.Helper()
	f := mounted{w: m.w}
	m.w.json(&f.MountReply, append([]string{"session", "fork", "-C", m.Dir, m.w.place(name), "--session", name, "--wait",
		"git", "--history", "none", "--prefetch", "none", "--checkpoint", "off"}, args...)...)
	return f
}

// A fork of the present state shows the times of its parent, so that make builds nothing again, and counts as
// unchanged.
func TestForksKeepTimes(t *testing.T) {
	w, _ := newTravelled(t)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"), "--session", "work", "--checkpoint", "off", "--wait", "git")
	out := w.place("out")
	build := "make -s OUT=" + out
	w.sh(m.Dir, `mkdir -p src/deep build empty/below && echo hello >src/main && echo deep >src/deep/part && echo x >build/object
printf 'all: $(OUT)/program\n$(OUT)/program: src/main src/deep/part d0001/f0001.txt\n\tmkdir -p $(OUT) && touch $(OUT)/program\n' >Makefile
ln -s main src/link && ln src/main src/second && mv d0002 src/moved && echo more >>d0003/f0003.txt && rm d0004/f0002.txt
chmod 700 src/deep && git mv d0005/f0001.txt renamed && git add src
touch -d '2 hours ago' src/main src/deep/part d0001/f0001.txt && touch -h -d '3 hours ago' src/link && touch -d '4 hours ago' empty
touch -d '1 hour' d0000/f0000.txt`)
	w.sh(m.Dir, build+" && touch -d '1 hour ago' "+out+"/program && "+build+" -q")
	old := m.checkpoint("--pin", "old")
	want := m.fileTimes()
	status := w.git(m.Dir, "status", "--porcelain")
	s.forget()

	f := m.fork("first")
	f.wantTimes("fork", want)
	w.sh(f.Dir, build+" -q")
	if got := w.git(f.Dir, "status", "--porcelain"); got != status {
		t.Errorf("git status in the fork: got %q, want %q", got, status)
	}
	if got, of := w.git(f.Dir, "diff"), w.git(m.Dir, "diff"); got != of {
		t.Errorf("git diff in the fork: got %q, want %q", got, of)
	}
	if _, blobs := s.cost(); blobs > 0 {
		t.Errorf("fork and git status have fetched %d contents, want none", blobs)
	}
	unchanged := func(what string) {
		t.Helper()
		if st := f.status(); st.Overlay.Changed != 0 || st.Overlay.Bytes != 0 {
			t.Errorf("%s: status shows the changes %+v, want none", what, st.Overlay)
		}
	}
	unchanged("fork")
	if p := f.checkpoint(); p.Tree != old.Tree {
		t.Errorf("checkpoint of the fork: got tree %s, want %s", p.Tree, old.Tree)
	}
	w.until("the worker was killed", func() bool { return syscall.Kill(w.serving(), syscall.SIGKILL) == nil })
	f.wantTimes("fork after a kill of the worker", want)
	w.ok("daemon", "--upgrade")
	f.wantTimes("fork after an upgrade", want)
	unchanged("fork after a takeover")

	// Each fork of a chain adds a change.
	last, others := f, []string{}
	for i := range 2 {
		w.sh(last.Dir, fmt.Sprintf("echo changed >>d0003/f000%d.txt && touch -d '5 hours ago' src/second", i))
		want = last.fileTimes()
		others = append(others, last.Dir)
		last = last.fork(fmt.Sprint("next", i))
		last.wantTimes("fork of a fork", want)
	}

	// A fork of an earlier checkpoint has the time of the checkpoint.
	var early control.MountReply
	w.json(&early, "session", "fork", "-C", m.Dir, old.ID, w.place("early"), "--session", "early")
	if got := w.sh(early.Dir, "stat -c %Y src/main d0001/f0001.txt d0003/f0005.txt | uniq | wc -l"); got != "1" {
		t.Errorf("a fork of an earlier checkpoint has %q times, want one", got)
	}
	w.ok(append([]string{"unmount", early.Dir, m.Dir}, others...)...)

	w.sh(last.Dir, build+" -q")
	for _, end := range []func(){func() { w.unmount(last) }, w.killDaemon} {
		end()
		w.ok("mount", last.Remote, last.Dir, "--session", last.Session, "--history", "none", "--prefetch", "none")
		last.wantTimes("fork after it was mounted again", want)
	}
	// If the listed times are lost, unchanged files do not have the older time either.
	w.killDaemon()
	w.check(os.RemoveAll(filepath.Join(w.state, "mounts", last.ID, "overlay")))
	w.ok("mount", last.Remote, last.Dir, "--session", last.Session, "--history", "none", "--prefetch", "none")
	if got := w.sh(last.Dir, "find Makefile d0001/f0001.txt d0003/f0000.txt -mmin -60 | wc -l"); got != "3" {
		t.Errorf("fork without its overlay: %s of 3 files have the time of the checkpoint", got)
	}
	w.ok("unmount", last.Dir)
}
