package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// addThin adds a session in thin mode to a repository, which therefore lacks the files of its base.
func (w *world) addThin(t *testing.T, name string) {
	t.Helper()
	r, err := w.db.Repos.Get(t.Context(), "team", "base")
	if err != nil {
		t.Fatal(err)
	}
	token, _ := access.Mint(records.Token{Role: records.AdminToken}, time.Now())
	if err := w.db.Tokens.Create(t.Context(), token, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	push := records.Push{RepoID: r.ID, TokenID: token.ID, Atomic: true}
	for _, ref := range []string{session.MetaRef(name), thin.Ref(name)} {
		push.Updates = append(push.Updates, records.RefUpdate{Name: ref, Old: w.vars["zeros"], New: w.vars["second"]})
	}
	results, err := w.db.Repos.Push(t.Context(), push)
	if err != nil || results[0] != nil || results[1] != nil {
		t.Fatalf("push: %v %v", err, results)
	}
}

func TestCompare(t *testing.T) {
	w := newReviewed(t)
	w.addThin(t, "lean")
	const (
		changes = `[{"path":"README.md","status":"M","old_mode":"100644","new_mode":"100644","old":"{readme}","new":"{workReadme}","added":1}]`
		totals  = `"added":0,"modified":1,"removed":0,"lines_added":1,"lines_removed":0,"changes":` + changes +
			`,"truncated":false`
		tests = `{"key":"test/{workTree}","known":%,"problem":null}`
		none  = `false,"first_line":"","size":0,"actor":"","session":null`
		based = `"base":"{second}","base_checkpoint":null,"base_tree":"{tree}",`
		ask   = "GET " + inBase + "/compare?p="
	)
	side := func(name, commit, results string) string {
		return `{"name":"` + name + `@","session":"` + name + `","state":"paused","checkpoint":"<ulid>","commit":"` + commit +
			`","tree":"{workTree}","subject":"idle","author":"ann@desk",` + based + totals + `,"tests":` +
			strings.Replace(tests, "%", results, 1) + `}`
	}
	main :=
		`{"name":"main","session":null,"state":"","checkpoint":null,"commit":"{second}","tree":"{tree}","subject":"second",` +
			`"author":"gittest",` + based +
			`"added":0,"modified":0,"removed":0,"lines_added":0,"lines_removed":0,"changes":[],"truncated":false,` +
			`"tests":{"key":"test/{tree}","known":` + none + `,"problem":null}}`
	const passed = `true,"first_line":"ok 12 tests","size":12,"actor":"ann","session":null`
	points := w.do(t, w.admin, http.MethodGet, w.expand(inBase + "/sessions/used/checkpoints")[1:], "")
	w.vars["usedPoint"] = valueOf(t, points.body, "result.0.commit")
	w.run(t, []exchange{
		{name: "session and branch", ask: ask + "work@&p=main", token: "reader", status: 200,
			want: ok(`{"base":"{second}","sides":[` +
				side("work", "{point}", none) + `,` + main +
				`],"pairs":[{"a":0,"b":1,"conflicts":[]}],"shared":[],"truncated":false}`)},
		{name: "test results", ask: "PUT " + inBase + "/cache/value?key=test%2F{workTree}", token: "ann",
			body: "ok 12 tests\n", status: 200,
			want: ok(fmt.Sprintf(entry, "test/{workTree}", 12,
				"1af9716194c0c7b3dd5bbe27c25696ca45056530a0d9a24ef75d168acced1321"))},
		{name: "sessions", ask: ask + "work@&p=used@", status: 200, want: ok(`{"base":"{second}","sides":[` +
			side("work", "{point}", passed) + `,` + side("used", "{usedPoint}", passed) +
			`],"pairs":[{"a":0,"b":1,"conflicts":[]}],` +
			`"shared":[{"path":"README.md","status":["M","M"],"verdict":"same","pairs":[{"a":0,"b":1,"verdict":"same"}]}],"truncated":false}`)},
		{name: "one", ask: ask + "work@", status: 400,
			want: fault(10100, "Too small: expected 2 or more different names", "/p")},
		{name: "one twice", ask: ask + "work@&p=work@&p=", status: 400,
			want: fault(10100, "Too small: expected 2 or more different names", "/p")},
		{name: "seven", ask: ask + "1&p=2&p=3&p=4&p=5&p=6&p=7", status: 400,
			want: fault(10100, "Too big: expected at most 6 names", "/p")},
		{name: "missing session", ask: ask + "main&p=none@", status: 404,
			want: fault(10200, `the repository has no proposal "none@"`)},
		{name: "missing branch", ask: ask + "main&p=none", status: 404,
			want: fault(10200, `the repository has no proposal "none"`)},
		{name: "thin", ask: ask + "main&p=lean@", status: 409,
			want: refusal(10901, "session lean is thin, and cannot be read: its container is not valid")},
		{name: "token of another repository", ask: ask + "main&p=work@", token: "other", status: 401,
			want: fault(10000, "Authentication error")},
	})
}
