package writeback

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestATreeOfSomebodyElsesBranch checks that a commit is pushed with its tree if the tree belongs to a branch that only
// the mounted remote has, as after a cherry-pick.
func TestATreeOfSomebodyElsesBranch(t *testing.T) {
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t, object.SHA1)
			to := newTestRemote(t, kind, object.SHA1, p.Origin.Path)
			blob := run(t, p.Origin.Path, "theirs", "hash-object", "-w", "--stdin")
			sub := run(t, p.Origin.Path, "100644 blob "+blob+"\tfile\n", "mktree")
			list := run(t, p.Origin.Path, "", "ls-tree", "main")
			tree := run(t, p.Origin.Path, list+"\n040000 tree "+sub+"\tnew-directory\n", "mktree")
			run(t, p.Origin.Path, "", "branch", "feature",
				run(t, p.Origin.Path, "", "commit-tree", "-m", "theirs", "-p", "main", tree))
			run(t, p.Work, "", "fetch", "-q", "--filter=blob:none", "origin", "feature:refs/remotes/origin/feature")
			p.copier()
			q := p.queue(to, QueueOptions{Store: p})
			run(t, p.Work, "", "update-ref", "refs/heads/main",
				run(t, p.Work, "", "commit-tree", "-m", "picked", "-p", "main", tree))
			picked := object.MustID(run(t, p.Work, "", "rev-parse", "main"))
			p.Carried(picked)
			wantSync(t, q)
			if got := to.ref("refs/heads/main"); got != picked.String() {
				t.Errorf("main on the session remote: got %q, want %s", got, picked)
			}
			run(t, to.dir, "", "fsck", "--strict")
		})
	}
}
