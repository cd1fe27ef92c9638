package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The default policy makes a checkpoint when changes have become idle, and a command that would discard changes waits
// for one.
func TestPolicies(t *testing.T) {
	w := newWorld(t)
	w.sized(3, 3)
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	idle := w.bare(url, "--wait", "git", "--session", "idle")
	if st := idle.status().Session; st.Policy != control.PolicyIdle || st.Checkpoints != 0 {
		t.Errorf("status: got %+v", st)
	}
	at := now()
	w.sh(idle.Dir, "echo new >new")
	st := idle.await("a checkpoint is made", func(s control.MountStatus) bool { return s.Session.Checkpoints > 0 }).Session
	if took := time.Since(at.at); took < time.Second || at.elapsed() > 10*time.Second {
		t.Errorf("session status after %s: got %+v", took, st)
	}
	idle.await("all changes are in the checkpoint", func(s control.MountStatus) bool { return !s.Session.Dirty })
	if p := idle.checkpoints(); len(p) != 1 || p[0].Reason != "idle" {
		t.Errorf("checkpoints: got %+v", p)
	}
	risk := w.bare(url, "--wait", "git", "--session", "risk", "--checkpoint", "before-risk")
	for i, script := range []string{"git reset -q --hard", "git checkout -q -- d0000", "git restore d0000/f0000.txt",
		"git clean -qfd && git checkout -q .", "git stash -q", "git switch -qf --detach"} {
		w.sh(risk.Dir, fmt.Sprintf("echo precious %d >d0000/f0000.txt; echo %d >untracked", i, i))
		want := w.look(risk.Dir).Tree
		w.sh(risk.Dir, script)
		saved := func(p control.Checkpoint) bool {
			return p.Tree == want && (p.Reason == "before-risk" || p.Reason == "git")
		} // the refs that git moved before are in a checkpoint, too
		if p := risk.checkpoints(); !slices.ContainsFunc(p, saved) {
			t.Errorf("%s: no checkpoint has the discarded changes, %s: %+v", script, want, p[:min(len(p), 2)])
		}
	}
	often := w.bare(url, "--wait", "git", "--session", "often", "--checkpoint", "interval=1s")
	w.sh(often.Dir, "echo a >a")
	often.await("a checkpoint is made", func(s control.MountStatus) bool { return s.Session.Checkpoints == 1 })
	w.sh(often.Dir, "echo b >a")
	often.await("another is made", func(s control.MountStatus) bool { return s.Session.Checkpoints == 2 })
}

// Checkpoints exclude files that should not leave the machine, such as secrets, and the session log lists them.
func TestCheckpointsLeaveOut(t *testing.T) {
	w := newWorld(t)
	r := w.sized(2, 2)
	w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte("build/\n*.o\n!keep.o\n")},
		"config/.env": {Data: []byte("TRACKED=1\n")}, "tracked.o": {Data: []byte("tracked\n")}})
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	script :=
		`mkdir -p build/deep .aws src && echo x >build/deep/x && echo x >a.o && echo x >keep.o && echo changed >tracked.o
		echo SECRET >.env && echo SECRET >.env.local && echo K >key.pem && echo K >id_rsa && echo K >.aws/credentials
		echo changed >config/.env && echo ok >src/environment && head -c 2000000 /dev/urandom >large && mkfifo pipe`
	for _, c := range []struct {
		name  string
		flags []string
		in    string
		out   map[string]string
	}{
		{"default", []string{"--max-file-size", "1M"}, "keep.o tracked.o config/.env src/environment",
			map[string]string{"build": "ignored", "a.o": "ignored", ".env": "secret", ".env.local": "secret",
				"key.pem": "secret", "id_rsa": "secret", ".aws/credentials": "secret", "large": "size", "pipe": "type"}},
		{"asked for", []string{"--include", "build/**,.env.local", "--exclude", "src/**", "--max-file-size", "10M"},
			"build/deep/x .env.local large", map[string]string{".env": "secret", "src": "excluded"}},
		{"no deny list", []string{"--no-deny-list"}, ".env key.pem id_rsa .aws/credentials",
			map[string]string{"a.o": "ignored"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := w.bare(url, append(c.flags, "--wait", "git", "--checkpoint", "off", "--session",
				strings.ReplaceAll(c.name, " ", "-"))...)
			w.sh(m.Dir, script)
			p := m.checkpoint()
			held := map[string]bool{}
			for name := range strings.SplitSeq(w.git(filepath.Join(w.state, "mounts", m.ID, "session.git"), "ls-tree", "-r",
				"--name-only", "-z", p.Tree), "\x00") {
				held[name] = true
			}
			for _, name := range strings.Fields(c.in) {
				if !held[name] {
					t.Errorf("path %s is not in the checkpoint", name)
				}
			}
			left := map[string]string{}
			for _, l := range p.LeftOut {
				left[strings.TrimSuffix(l.Path, "/")] = l.Why
			}
			for name, why := range c.out {
				if held[name] || left[name] != why && left[filepath.Dir(name)] != why &&
					left[filepath.Join(name, "environment")] != why {
					t.Errorf("path %s: in the checkpoint %v, left out because of %q, want %q", name, held[name], left[name], why)
				}
			}
			// The excluded paths of a checkpoint can also be listed after later checkpoints, and while the session is not
			// mounted.
			w.sh(m.Dir, "rm -rf build .aws *.o .env* key.pem id_rsa large pipe; echo more >more")
			m.checkpoint()
			for _, at := range []string{"mounted", "unmounted"} {
				var show control.SessionShowReply
				if out := w.ok("session", "show", "-C", m.Session, p.ID, "--json"); json.Unmarshal([]byte(out), &show) != nil ||
					!reflect.DeepEqual(show.LeftOut, p.LeftOut) {
					t.Errorf("%s: session show lists the excluded paths %+v, the checkpoint %+v", at, show.LeftOut, p.LeftOut)
				}
				if at == "mounted" {
					w.unmount(m)
				}
			}
		})
	}
}
