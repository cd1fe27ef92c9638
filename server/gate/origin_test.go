package gate

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
)

// make stores a commit with the tree of another commit, and with an author and a committer whose addresses are at host.
// Each commit has another message, so that no two commits are the same.
func (b *bed) make(like, author, committer string, parents ...string) string {
	b.t.Helper()
	b.commits++
	args := []string{"commit-tree", "-m", fmt.Sprint("made ", b.commits), like + "^{tree}"}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	cmd := exec.Command("git", args...)
	cmd.Dir = b.dir
	cmd.Env = append(gittest.Env(), "GIT_AUTHOR_NAME="+author, "GIT_AUTHOR_EMAIL="+author+"@host",
		"GIT_COMMITTER_NAME="+committer, "GIT_COMMITTER_EMAIL="+committer+"@host")
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestApprovalCoversCommits checks that an approval covers the commit that was reviewed and its ancestors, and one
// squash or merge of it by the user who pushes. All these commits have the approved tree.
func TestApprovalCoversCommits(t *testing.T) {
	b := newBed(t, object.SHA1)
	b.policy(onePolicy)
	base := b.commit("", map[string]string{"a": "1"})
	fix := b.commit(base, map[string]string{"a": "fixed"})
	changed := b.commit("", map[string]string{"a": "2"})
	first := b.make(changed, "agent", "agent", base)
	head := b.make(changed, "agent", "agent", first)
	b.refs["refs/heads/main"] = base
	b.approve("work", base, head)
	unnamed := records.Token{ID: "u", Role: records.RepoToken}
	for _, c := range []struct {
		what, commit, want string
		token              records.Token
	}{
		{"approved commit", head, "", writer},
		{"ancestor with the same tree", first, "", writer},
		{"merge", b.make(head, "writer", "writer", base, head), "", writer},
		{"squash", b.make(head, "agent", "writer", base), "", writer},
		{"squash with a token without an actor", b.make(head, "agent", "agent", base), "", unnamed},
		{"merge that the server makes for a token without an actor", b.make(head, "token:u", "token:u", base, head), "",
			unnamed},
		{"another branch as second parent", b.make(head, "writer", "writer", base, fix), "and not commit", writer},
		{"another branch as third parent", b.make(head, "writer", "writer", base, head, fix), "and not commit", writer},
		{"a commit after the approved one", b.make(head, "agent", "writer", head), "and not commit", writer},
		{"two commits", b.make(head, "agent", "writer", b.make(head, "agent", "writer", base)), "and not commit", writer},
		{"parents in another order", b.make(head, "writer", "writer", head, base), "and not commit", writer},
		{"another author", b.make(head, "alice", "writer", base), "other authors than alice <alice@host>", writer},
		{"another committer", b.make(head, "agent", "agent", base), "the committer of", writer},
		{"a reviewer as committer", b.make(head, "agent", "alice", base, head), "the committer of", writer},
		{"a reviewer as committer, without an actor", b.make(head, "agent", "alice", base), "the committer of", unnamed},
	} {
		got, _ := b.one(c.token, "refs/heads/main", c.commit)
		wants(t, c.what, got, c.want)
	}
	delete(b.refs, "refs/heads/main")
	b.approve("new", "", head)
	got, _ := b.one(writer, "refs/heads/main", b.make(head, "writer", "writer"))
	wants(t, "creation with another commit", got, "and not commit")
	got, _ = b.one(writer, "refs/heads/main", first)
	wants(t, "creation with an ancestor", got, "")
}

// TestRequestWithoutCommit checks that approvals of a request of an older version, which names no commit, allow
// nothing, and that new ones cannot be made.
func TestRequestWithoutCommit(t *testing.T) {
	b := newBed(t, object.SHA1)
	b.policy(onePolicy)
	base := b.commit("", map[string]string{"a": "1"})
	next := b.commit(base, map[string]string{"a": "2"})
	b.refs["refs/heads/main"] = base
	id := b.add("work", approval.Record{Op: approval.Request, Actor: "writer", Token: "t",
		Subject: &approval.Subject{Action: approval.Merge,
			Tree: b.git("", "rev-parse", next+"^{tree}"), Target: "refs/heads/main", Base: base}})
	made := b.refs[approval.Ref("work")]
	delete(b.refs, approval.Ref("work"))
	got, _ := b.one(writer, approval.Ref("work"), made)
	wants(t, "new request", got, "names no commit")
	b.refs[approval.Ref("work")] = made
	b.add("work", approval.Record{Op: approval.Grant, Actor: "alice", Token: "a", Request: id})
	got, _ = b.one(writer, "refs/heads/main", next)
	wants(t, "push", got, "request "+id+" names no commit")
}
