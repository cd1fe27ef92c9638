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

// make stores a commit with the tree of another commit, and with an author and a committer, as in "ann <bob@host>".
// Without an address, it is that of the name at host. Each commit has another message, so that no two are the same.
func (b *bed) make(like, author, committer string, parents ...string) string {
	b.t.Helper()
	b.commits++
	args := []string{"commit-tree", "-m", fmt.Sprint("made ", b.commits), like + "^{tree}"}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	cmd := exec.Command("git", args...)
	cmd.Dir = b.dir
	cmd.Env = gittest.Env()
	for role, who := range map[string]string{"AUTHOR": author, "COMMITTER": committer} {
		name, mail, found := strings.Cut(strings.TrimSuffix(who, ">"), " <")
		if !found {
			mail = name + "@host"
		}
		cmd.Env = append(cmd.Env, "GIT_"+role+"_NAME="+name, "GIT_"+role+"_EMAIL="+mail)
	}
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
		{"merge that the server makes",
			b.make(head, "writer <writer@artifactfs.invalid>", "writer <writer@artifactfs.invalid>", base, head), "", writer},
		{"the address of a reviewer", b.make(head, "writer <alice@host>", "writer <alice@host>", base),
			"other authors than writer <alice@host>", writer},
		{"the address of a reviewer as that of the committer", b.make(head, "agent", "writer <alice@host>", base, head),
			"set user.name to writer and user.email to writer@artifactfs.invalid", writer},
		{"the name of a reviewer as that of the committer", b.make(head, "agent", "alice <writer@host>", base),
			"the committer of", writer},
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

func TestPersonIsActor(t *testing.T) {
	for _, c := range []struct {
		name, mail, actor string
		want              bool
	}{
		{"ann", "ann@host", "ann", true}, {"Ann", "Ann@host", "ann", true}, {"ann", "ann@artifactfs.invalid", "ann", true},
		{"ann", "bob@host", "ann", false}, {"bob", "ann@host", "ann", false}, {"ann", "", "ann", false},
		{"Ann Lee", "ann.lee@host", "Ann Lee", true}, {"Ann Lee", "bob@host", "Ann Lee", false},
		{"ann@host", "ann@host", "ann@host", true}, {"ann", "ann@host", "ann@host", true},
		{"ann", "ann@other", "ann@host", false}, {"bob", "ann@host", "ann@host", false},
		{"token:u", "token:u@artifactfs.invalid", "token:u", true},
		{approval.Person("a<b>."), approval.Address("a<b>."), "a<b>.", true},
	} {
		if got := (person{c.name, c.mail}).is(c.actor); got != c.want {
			t.Errorf("%s <%s> is %q: got %t, want %t", c.name, c.mail, c.actor, got, c.want)
		}
	}
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
