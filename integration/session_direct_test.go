package integration

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// written writes an annotation, a cache entry and a request for approval of the session work, and returns the users in
// whose names the session remote has them.
func (w *world) written(key string, at ...string) []string {
	w.Helper()
	var note control.SessionAnnotateReply
	w.json(&note, append([]string{"session", "annotate", "-m", "text"}, at...)...)
	w.stored("value", append([]string{"put", key}, at...)...)
	var keys control.CacheKeysReply
	w.json(&keys, append([]string{"session", "cache", "keys", key}, at...)...)
	if len(keys.Entries) != 1 {
		w.Fatalf("entries %s: got %+v, want one", key, keys)
	}
	var request control.SessionApproveReply
	w.json(&request, append([]string{"session", "review", "request", "--for", "delete"}, at...)...)
	users := []string{note.Thread.Annotations[0].Actor, keys.Entries[0].Actor, request.Approval.Actor}
	slices.Sort(users)
	return slices.Compact(users)
}

// Annotations, cache entries and approvals are on the session remote of the session, also if an earlier mount has named
// it, and by the user whom the command names.
func TestSessionRemoteOfRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("direct"))
	c := w.sessionRemote("http", nil)
	at := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(at, "--session", "work", "--session-remote", c.arg, "--wait", "git")
	w.sh(m.Dir, "echo x >new")
	m.checkpoint("--sync")
	w.unmount(m)
	m = w.bare(at, "--session", "work", "--wait", "git")
	for i, from := range []struct {
		what string
		w    *world
		at   []string
	}{
		{"mounted", w, []string{"-C", m.Dir}},
		{"not mounted", w, []string{"-C", "work"}},
		{"elsewhere", w.elsewhere(), []string{"-C", "work", "--session-remote", c.arg}},
	} {
		if from.what == "not mounted" {
			w.unmount(m)
		}
		if got := from.w.as("erin").written(fmt.Sprint("key", i), from.at...); !slices.Equal(got, []string{"erin"}) {
			t.Errorf("%s: got the users %q, want erin", from.what, got)
		}
		refs := strings.Fields(w.git(c.Path, "for-each-ref", "--format=%(refname)", "refs/afs/ann", "refs/afs/cache",
			"refs/afs/approvals"))
		if len(refs) != 3+i {
			t.Errorf("%s: the session remote has %q, want annotations, approvals and %d entries", from.what, refs, i+1)
		}
	}
}

// On a server, annotations, cache entries and approvals have the user of the token, whatever name the command sends.
func TestUserOfRequests(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo x >new")
	m.checkpoint("--sync")
	u := must[*url.URL](t)(url.Parse(m.Remote))
	for _, actor := range []string{"alice", ""} {
		token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Scope: client.Write, Actor: actor}))
		u.User = url.UserPassword("x", token.Plaintext)
		want := actor
		if want == "" {
			want = "token:" + token.ID
		}
		if got := w.elsewhere().as("erin").written("key", "-C", "work", "--session-remote", u.String()); !slices.Equal(got,
			[]string{want}) {
			t.Errorf("requests with the token of %q: got the users %q, want %s", actor, got, want)
		}
	}
	w.unmount(m)
}
