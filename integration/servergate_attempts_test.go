package integration

import (
	"bytes"
	"time"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
)

// attempt is an attempt to change what the policy protects.
type attempt struct {
	what string // for people
	user string
	args []string // of git push
	// before prepares the attempt, and returns what %s in args stands for.
	before func(g *gated) []any
	want   string // text of the refusal, with ULIDs, ids and hashes replaced by ...
	others bool   // other branches of the same push may change
}

// one returns a function for attempt.before that has one result.
func one(f func(g *gated) string) func(*gated) []any {
	return func(g *gated) []any { return []any{f(g)} }
}

var attempts = []attempt{
	{what: "direct push", user: "writer", args: []string{"next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "direct push by an administrator", user: "admin", args: []string{"next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "force push", user: "writer", args: []string{"--force", "other:main"}, before: func(g *gated) []any {
		g.git("checkout", "--quiet", "--orphan", "other")
		g.git("commit", "--quiet", "-m", "other")
		return nil
	}, want: "main is protected: it can only be fast-forwarded"},
	{what: "force push of an approved tree", user: "writer", args: []string{"--force", "%s:main"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			return g.git("commit-tree", "-m", "other", g.next+"^{tree}")
		}), want: "main is protected: it can only be fast-forwarded"},
	{what: "deletion", user: "writer", args: []string{"--delete", "main"},
		want: "main is protected: it cannot be removed while the policy protects it"},
	{what: "creation of a branch that a glob matches", user: "writer", args: []string{"next:release/1"},
		want: "release/1 is protected and needs an approval of this tree and base by 2 users"},
	{what: "one of several branches", user: "writer", args: []string{"next:copy", "next:main"}, others: true,
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "one of several branches, all or none", user: "writer", args: []string{"--atomic", "next:copy", "next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "push options", user: "writer", args: []string{"-o", "ci.skip", "-o", "approved", "next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "renaming", user: "writer", args: []string{"next:renamed", ":main"}, others: true,
		want: "main is protected: it cannot be removed while the policy protects it"},
	{what: "deletion, and a branch below it in the same push", user: "writer",
		args: []string{"--atomic", ":main", "next:main/next"},
		want: "main is protected: it cannot be removed while the policy protects it"},
	{what: "a branch below main", user: "writer", args: []string{"next:main/next"},
		want: "'refs/heads/main' exists; cannot create 'refs/heads/main/next'"},
	{what: "deletion with the policy, in one push", user: "admin", args: []string{":refs/afs/policy", ":main"},
		others: true,
		want:   "main is protected: it cannot be removed while the policy protects it"},
	{what: "a policy whose name has another case", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			open := g.store("", approval.PolicyFile, []byte(`{"version":1}`))
			g.accept("writer", open+":refs/AFS/policy", open+":refs/heads/policy")
			return nil
		}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "approval of a branch whose name has another case", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			g.grant("alice", g.request("Main", g.base, g.next))
			g.accept("writer", "next:Main")
			return nil
		}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "replacement of the commit by an approved one", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			g.git("checkout", "--quiet", "-b", "fix", g.base)
			fix := g.commit("fix", "file", "fixed\n")
			g.grant("alice", g.request("main", g.base, fix))
			g.accept("writer", fix+":refs/replace/"+g.next)
			return nil
		}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "approvals below the name of a session", user: "writer", args: []string{"next:refs/afs/approvals/work/next"},
		want: "the refs below refs/afs/approvals/ have the names of sessions"},
	{what: "a ref that keeps others from having approvals", user: "writer", args: []string{"next:refs/afs/approvals"},
		want: "refs below refs/afs/ have the name of a session"},
	{what: "stale approval: one more commit", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.grant("alice", g.request("main", g.base, g.next))
		g.commit("next", "file", "three\n")
		return nil
	}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "stale approval: main has moved", user: "writer", args: []string{"%s:main"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		g.git("checkout", "--quiet", "-b", "fix", g.base)
		fix := g.commit("fix", "file", "fixed\n")
		g.grant("alice", g.request("main", g.base, fix))
		g.accept("writer", "fix:main")
		return g.git("commit-tree", "-m", "the approved tree", "-p", fix, g.next+"^{tree}")
	}), want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "stale approval: the session was changed after the review", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			r := g.by("agent", approval.Request, "")
			r.Expires = time.Now().Add(time.Hour)
			r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"),
				Target: "refs/heads/main", Base: g.base, Commit: g.next,
				Checkpoint: string(session.NewCheckpointIDAfter(time.Now().Add(-time.Minute), ""))}
			r, c := g.record(r)
			g.accept("agent", c+":"+approval.Ref("work"))
			g.grant("alice", r.ID)
			g.checkpoint()
			return nil
		}, want: "main is protected: request ... is void, because the session was changed after the review"},
	{what: "approval of another session", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.git("checkout", "--quiet", "-b", "fix", g.base)
		fix := g.commit("fix", "file", "fixed\n")
		g.restart("fixes")
		g.grant("alice", g.request("main", g.base, fix))
		return nil
	}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "approved tree, with another branch as second parent", user: "writer", args: []string{"%s:main"},
		before: one(func(g *gated) string {
			g.git("checkout", "--quiet", "-b", "fix", g.base)
			fix := g.commit("fix", "SECURITY", "fixed\n")
			g.grant("alice", g.request("main", g.base, g.next))
			return g.made("writer", "writer", g.base, fix)
		}),
		want: "main is protected: request ... covers commit ..., or one commit that squashes it onto ... or merges it, and not commit ..."},
	{what: "approved tree, as two commits", user: "writer", args: []string{"%s:main"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		return g.made("writer", "writer", g.made("writer", "writer", g.base))
	}),
		want: "main is protected: request ... covers commit ..., or one commit that squashes it onto ... or merges it, and not commit ..."},
	{what: "squash in the name of a reviewer", user: "writer", args: []string{"%s:main"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			return g.made("alice", "writer", g.base)
		}),
		want: "main is protected: request ... covers commits of other authors than alice <alice@host>, who is not writer who pushes commit ..."},
	{what: "merge with a reviewer as committer", user: "writer", args: []string{"%s:main"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			return g.made("writer", "alice", g.base, g.next)
		}),
		want: "main is protected: request ... covers a squash or merge by the user who pushes it, and the committer of ... is alice <alice@host>, but the token is of writer: set user.name to writer and user.email to writer@artifactfs.invalid"},
	{what: "request that names no commit", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			r := g.by("agent", approval.Request, "")
			r.Expires = time.Now().Add(time.Hour)
			r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"),
				Target: "refs/heads/main", Base: g.base}
			_, c := g.record(r)
			return c
		}), want: "request ... names no commit: request the approval with this version of artifactfs"},
	{what: "request without a grant", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.request("main", g.base, g.next)
		return nil
	}, want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "grant of a user who is not a reviewer", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			g.grant("carol", g.request("main", g.base, g.next))
			return nil
		}, want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "denied, and granted by another reviewer", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			id := g.request("main", g.base, g.next)
			_, c := g.record(g.by("bob", approval.Deny, id))
			g.accept("bob", c+":"+approval.Ref("work"))
			g.grant("alice", id)
			return nil
		}, want: "main is protected: request ... was denied by bob"},
	{what: "two users are needed, and one has granted", user: "writer", args: []string{"next:release/1"},
		before: func(g *gated) []any {
			g.grant("alice", g.request("release/1", "", g.next))
			return nil
		}, want: "release/1 is protected: request ... needs 1 more approval"},
	{what: "grant with the session's own token", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			_, c := g.record(g.by("agent", approval.Grant, g.request("main", g.base, g.next)))
			return c
		}), want: "grant ... is refused: a token of a session can request and withdraw, but not grant"},
	{what: "grant with a token that names no user", user: "unnamed", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			return g.unnamed(approval.Grant)
		}), want: "grant ... is refused: a token without an actor can request and withdraw, but not grant"},
	{what: "denial with a token that names no user", user: "unnamed", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			return g.unnamed(approval.Deny)
		}), want: "deny ... is refused: a token without an actor can request and withdraw, but not deny"},
	{what: "grant under the name of another user", user: "writer", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			r := g.by("writer", approval.Grant, g.request("main", g.base, g.next))
			r.Actor = "alice"
			_, c := g.record(r)
			return c
		}), want: "grant ... is by alice, but the token is of writer"},
	{what: "grant with the id of another token", user: "alice", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			r := g.by("alice", approval.Grant, g.request("main", g.base, g.next))
			r.Token = g.ids["bob"]
			_, c := g.record(r)
			return c
		}), want: `grant ... names the token "...", but is pushed with ...`},
	{what: "grant of the reviewer in the same push as main", user: "alice",
		args: []string{"--atomic", "%s:refs/afs/approvals/work", "next:main"}, before: one(func(g *gated) string {
			_, c := g.record(g.by("alice", approval.Grant, g.request("main", g.base, g.next)))
			return c
		}), want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "records replayed: copied from another session", user: "writer", args: []string{"%s:refs/afs/approvals/new"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			return g.store("", approval.LogFile, g.file)
		}), want: `invalid approval records: line 1: record is for session "work"`},
	{what: "records replayed: an old line appended again", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			line, _, _ := bytes.Cut(g.file, []byte("\n"))
			return g.records(append(append(bytes.Clone(g.file), line...), '\n'))
		}), want: "invalid approval records: line 3: hash of the previous line does not match"},
	{what: "records cut, with a new commit", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			g.grant("alice", g.request("main", g.base, g.next))
			line, _, _ := bytes.Cut(g.file, []byte("\n"))
			return g.records(append(line, '\n'))
		}), want: "records of approvals cannot be changed or removed, only added"},
	{what: "records cut, by a force push of an older commit", user: "agent",
		args: []string{"--force", "%s^:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			id := g.request("main", g.base, g.next)
			_, c := g.record(g.by("alice", approval.Deny, id))
			g.accept("alice", c+":"+approval.Ref("work"))
			return c
		}), want: "approvals can only be fast-forwarded"},
	{what: "records rewritten", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			g.grant("carol", g.request("main", g.base, g.next))
			return g.records(bytes.ReplaceAll(g.file, []byte("carol"), []byte("alice")))
		}), want: "records of approvals cannot be changed or removed, only added"},
	{what: "records removed", user: "agent", args: []string{"--delete", "refs/afs/approvals/work"},
		before: func(g *gated) []any {
			g.accept("agent", g.base+":"+session.MetaRef("work"))
			g.request("main", g.base, g.next)
			return nil
		}, want: "the approvals of a session can be removed only together with the session"},
	{what: "clock: a record from the future", user: "alice", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			r := g.by("alice", approval.Grant, g.request("main", g.base, g.next))
			r.Time = time.Now().Add(time.Hour)
			_, c := g.record(r)
			return c
		}), want: "grant ... has the time ..., which is not within 5m0s of the server's"},
	{what: "clock: a record from the past", user: "agent", args: []string{"%s:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			r := g.by("agent", approval.Request, "")
			r.Time, r.Expires = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
			r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"),
				Target: "refs/heads/main", Base: g.base, Commit: g.next}
			_, c := g.record(r)
			return c
		}), want: "request ... has the time ..., which is not within 5m0s of the server's"},
	{what: "clock: an approval that has expired", user: "writer", args: []string{"next:main"},
		before: func(g *gated) []any {
			r := g.by("agent", approval.Request, "")
			r.Time, r.Expires = time.Now().Add(-time.Minute), time.Now().Add(-time.Second)
			r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"),
				Target: "refs/heads/main", Base: g.base, Commit: g.next}
			r, c := g.record(r)
			g.accept("agent", c+":"+approval.Ref("work"))
			g.grant("alice", r.ID)
			return nil
		}, want: "main is protected: request ... has expired"},
	{what: "removal of the policy", user: "writer", args: []string{"--delete", "refs/afs/policy"},
		want: "only an owner or admin token can change the policy"},
	{what: "another policy", user: "writer", args: []string{"--force", "%s:refs/afs/policy"},
		before: one(func(g *gated) string {
			return g.store("", approval.PolicyFile, []byte(`{"version":1}`))
		}), want: "only an owner or admin token can change the policy"},
	{what: "a ref that keeps others from having a policy", user: "writer", args: []string{"next:refs/afs/policy/work"},
		want: "no ref can be below refs/afs/policy"},
	{what: "a policy that is not valid", user: "admin", args: []string{"--force", "%s:refs/afs/policy"},
		before: one(func(g *gated) string {
			return g.store("", approval.PolicyFile, []byte(`{"version":1,"branches":[{"match":"main"}]}`))
		}), want: "invalid policy: rule 1 of branches: quorum is 0, want at least 1"},
	{what: "a policy without its file", user: "admin", args: []string{"--force", "next:refs/afs/policy"},
		want: "ref does not contain the file policy.json"},
	{what: "deletion of a protected session", user: "agent", args: []string{"--delete", "refs/afs/meta/work"},
		before: func(g *gated) []any {
			g.accept("agent", g.base+":"+session.MetaRef("work"))
			g.checkpoint()
			return nil
		}, want: "session work is protected and needs an approval of its deletion with its newest checkpoint by 1 user"},
}
