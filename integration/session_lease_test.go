package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// An idle mount gives signs of life, and a mount with its identity on another host needs no --take-over. The process of
// a killed mount is made unknown, as if it were on another host, and its session is free after the lease.
func TestSessionLease(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", r)
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--session-lease", "3s")...)
	w.sh(m.Dir, "echo first >first")
	m.checkpoint("--sync")
	lane := func() session.Lane {
		var meta session.Meta
		w.check(json.Unmarshal([]byte(w.sh(c.Path, "git show refs/afs/meta/work:session.json")), &meta))
		return meta.Lanes[0]
	}
	first := lane()
	w.until("the idle mount gives a sign of life", func() bool { return lane().Seen.After(first.Seen) })
	if st := m.status().Session; st.Lane != "main" || st.Error != "" || len(m.checkpoints()) != 1 {
		t.Errorf("after a sign of life: got status %+v", st)
	}
	w.killDaemon()
	w.umount(m.Dir)
	// Another PID namespace, in which the process cannot be looked up.
	w.sh(c.Path, `git show refs/afs/meta/work:session.json | sed 's/"pids": .*/"pids": "pid:[1]",/' >new && `+
		`git show refs/afs/meta/work:transitions.jsonl >old && t=$(printf '100644 blob %s\tsession.json\n100644 blob %s\ttransitions.jsonl\n' `+
		`$(git hash-object -w new) $(git hash-object -w old) | git mktree) && `+
		`git update-ref refs/afs/meta/work $(git commit-tree -p refs/afs/meta/work -m x $t) && rm new old`)
	killed := lane()
	o := w.elsewhere()
	dir, args := w.place("m"), append(c.flags("work"), "--wait", "git")
	asked := time.Now()
	res := o.afs(append([]string{"mount", url, dir}, args...)...)
	for res.code != 0 && time.Since(killed.Seen) < time.Minute {
		if res.code != control.ExitFailed || !strings.Contains(res.stderr, "its lease ends at") ||
			asked.Sub(killed.Seen) > 20*time.Second {
			t.Fatalf("mount during the lease: got %s", res)
		}
		asked = time.Now()
		res = o.afs(append([]string{"mount", url, dir}, args...)...)
	}
	if res.code != 0 || time.Since(killed.Seen) < 3*time.Second {
		t.Errorf("mount after the lease: got %s, %v after the last sign of life", res, time.Since(killed.Seen))
	}
	w.wantFile(dir+"/first", "first\n")
	o.ok("unmount", dir)
}
