package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// TestCacheEntries checks that a pushed cache entry must name the user who pushes, and that a token for one session can
// only write entries of this session.
func TestCacheEntries(t *testing.T) {
	b := newBed(t, object.SHA1)
	ref := cacheentry.Ref("test/tree")
	store := func(actor, name string) string {
		text :=
			fmt.Sprintf(`{"version":1,"key":"test/tree","size":2,"sha256":%q,"time":"2026-01-02T03:04:05Z","actor":%q,"session":%q}`,
				strings.Repeat("0", 64), actor, name)
		return b.commit(b.commit("", map[string]string{cacheentry.ValueFile: "ok"}),
			map[string]string{cacheentry.InfoFile: text})
	}
	bound := records.Token{ID: "s", Role: records.RepoToken, Actor: "agent", Session: "work"}
	unnamed := records.Token{ID: "u", Role: records.RepoToken}
	for _, c := range []struct {
		what         string
		token        records.Token
		commit, want string
	}{
		{"own", writer, store("writer", ""), ""},
		{"own, in a session", writer, store("writer", "work"), ""},
		{"own, with the token of the session", bound, store("agent", "work"), ""},
		{"without an actor", unnamed, store("token:u", ""), ""},
		{"in the name of another user", bound, store("ci-bot", "work"), `is by "ci-bot", but the token is of agent`},
		{"in the name of another user, by an administrator", records.Token{ID: "a", Role: records.AdminToken},
			store("ci-bot", ""), "is by \"ci-bot\""},
		{"of another session", bound, store("agent", "other"),
			`names the session "other", but the token is for session work`},
		{"of no session", bound, store("agent", ""), "but the token is for session work"},
		{"without a description", writer, b.commit("", map[string]string{"x": "x"}), "cannot be read"},
		{"invalid description", writer, b.commit("", map[string]string{cacheentry.InfoFile: "{}"}), "cannot be read"},
		{"no commit", writer, b.git("x", "hash-object", "-w", "--stdin"), "cannot be read"},
	} {
		got, _ := b.one(c.token, ref, c.commit)
		wants(t, c.what, got, c.want)
	}
	b.refs[ref] = store("ci-bot", "")
	got, _ := b.one(bound, ref, store("ci-bot", "work"))
	wants(t, "changed, in the name of another user", got, "is by")
	got, _ = b.one(bound, ref, "")
	wants(t, "removal", got, "")
}
