package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Many files that are in no checkpoint are removed or overwritten, and the worker or the whole daemon is killed before
// the checkpoint of them is made. The successor makes the checkpoint, and restore recreates the files as the copy by cp
// -a has them. Each script is one process, or few, so that it usually ends before a checkpoint is due.
func TestMassRemovalsOutliveKills(t *testing.T) {
	t.Parallel()
	const files = `mkdir -p d/deep/er && for i in $(seq 60); do echo precious $i >d/deep/f$i; echo other $i >d/deep/er/g$i; done; ln -s f1 d/deep/link; chmod +x d/deep/f2; head -c 300000 /dev/urandom >d/deep/big; ln d/deep/f3 d/hard`
	removed := func(m mounted) bool { return !exists(m.path("d/deep/er/g30")) || !exists(m.path("d/deep/f30")) }
	for _, c := range []struct {
		name, script string
		amid         func(m mounted) bool // the kill happens when amid returns true; nil: after the script
		whole        bool                 // the whole daemon is killed, which ends the mount
	}{
		{name: "rm", script: `rm -rf d`},
		{name: "rm, unmount", script: `rm -rf d`},
		{name: "rm amid", script: `rm -rf d`, amid: removed},
		{name: "rm, daemon", script: `rm -rf d`, whole: true},
		{name: "sed -i", script: `sed -i s/precious/worthless/ d/deep/f*`},
		{name: "truncate", script: `for f in d/deep/f*; do : >$f; done; : >d/deep/big; truncate -s 1 d/deep/er/*`},
		{name: "mv", script: `mkdir new && for i in $(seq 60); do echo new >new/f$i; done && mv new/* d/deep`},
		{name: "in place", script: `for f in d/deep/f* d/deep/big; do printf worthless 1<>$f; done`},
		{name: "in place, daemon", script: `for f in d/deep/er/* d/deep/big; do printf worthless 1<>$f; done`, whole: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.sized(3, 3)
			url := w.serve(gittest.ServerOptions{}).URL("sized.git")
			args := []string{"--wait", "git", "--session", "work", "--checkpoint", "interval=1h"}
			m := w.bare(url, args...)
			saved := filepath.Join(w.root, "saved")
			w.sh(m.Dir, files+`; cp -a d `+saved)
			worker := w.serving()
			cmd := exec.Command("sh", "-ec", c.script)
			cmd.Dir = m.Dir
			if c.amid != nil {
				check(t, cmd.Start())
				w.until("files are being removed", func() bool { return c.amid(m) })
			} else if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("run %s: %v: %s", c.script, err, out)
			}
			switch {
			case c.name == "rm, unmount": // no kill, and in the end no path has changed
				w.unmount(m)
				m, _ = w.mountAt(url, m.Dir, args...)
			case c.whole:
				w.killDaemon()
				m, _ = w.mountAt(url, m.Dir, args...)
			default:
				check(t, syscall.Kill(worker, syscall.SIGKILL))
			}
			if c.amid != nil {
				check(t, cmd.Wait())
			}
			p := m.removal("")
			w.sh(m.Dir, "rm -rf d") // so that restore has to create all files
			w.ok("session", "restore", p.ID, "d", "-C", m.Dir)
			if out, err := exec.Command("diff", "-r", "--no-dereference", "-x", "sed*", // sed's new file may be there, too
				saved, m.path("d")).CombinedOutput(); err != nil {
				t.Errorf("restored files differ from the copy: %s", out)
			}
			if got, err := os.Readlink(m.path("d/deep/link")); err != nil || got != "f1" {
				t.Errorf("target of the restored link: got %q (%v), want f1", got, err)
			}
			before := m.removals()
			w.unmount(m)
			// No further checkpoint is made of the removal.
			m, _ = w.mountAt(url, m.Dir, args...)
			m.checkpoint()
			if got := m.removals(); got != before {
				t.Errorf("checkpoints of removals after another mount: got %d, want %d as before", got, before)
			}
			w.unmount(m)
		})
	}
}

// removals returns the number of checkpoints of removed files.
func (m mounted) removals() (n int) {
	m.w.Helper()
	for _, p := range m.checkpoints() {
		if p.Reason == "removal" {
			n++
		}
	}
	return n
}

// A file is overwritten after a checkpoint of removed files was made, and the daemon is killed. The checkpoint of the
// successor has the file as it was before. The first checkpoint still has all files as they were before their removal.
func TestRemovalsAfterACheckpointOutliveAKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sized(3, 3)
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	args := []string{"--wait", "git", "--session", "work", "--checkpoint", "interval=1h"}
	m := w.bare(url, args...)
	w.sh(m.Dir, `mkdir d && for i in $(seq 20); do echo precious $i >d/f$i; done
		for i in $(seq 20); do printf worthless 1<>d/f$i; done`)
	first := m.removal("")
	w.sh(m.Dir, `echo later >d/later; printf worthless 1<>d/later`)
	w.killDaemon()
	m, _ = w.mountAt(url, m.Dir, args...)
	next := m.removal(first.ID)
	if got := m.in(next.Tree, "d/later"); got != "later\n" {
		t.Errorf("file that was overwritten after the checkpoint: got %q, want %q", got, "later\n")
	}
	for i := 1; i <= 20; i++ {
		want := fmt.Sprintf("precious %d\n", i)
		if got := m.in(first.Tree, fmt.Sprint("d/f", i)); got != want {
			t.Errorf("f%d in the first checkpoint: got %q, want %q", i, got, want)
		}
	}
	w.unmount(m)
}

// Thousands of new files are removed within the idle window.
func TestManyNewFilesAreRemovedAndRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sized(3, 3)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work", "--checkpoint",
		"interval=1h")
	w.sh(m.Dir, `mkdir many && cd many && seq 3000 | split -l 1 -a 4 - f && cp -a . `+filepath.Join(w.root, "saved")+
		` && cd .. && rm -rf many`)
	p := m.removal("")
	w.ok("session", "restore", p.ID, "many", "-C", m.Dir)
	if out, err := exec.Command("diff", "-r", filepath.Join(w.root, "saved"),
		m.path("many")).CombinedOutput(); err != nil {
		t.Errorf("restored files differ from the copy: %s", out)
	}
	w.unmount(m)
}
