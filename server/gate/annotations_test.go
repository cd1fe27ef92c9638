package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
)

// TestAnnotations checks that a push may only add acts to the annotations of a session, and only acts of the user who
// pushes.
func TestAnnotations(t *testing.T) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) { testAnnotations(t, format) })
	}
}

func testAnnotations(t *testing.T, format object.Format) {
	b := newBed(t, format)
	ref := session.AnnotationsRef("work")
	carol := records.Token{ID: "c", Actor: "carol", Session: "work"}
	owner := records.Token{ID: "o", Role: records.OwnerToken}
	store := func(file string) string {
		t.Helper()
		return b.commit(b.refs[ref], map[string]string{annotate.LogFile: file})
	}
	add := func(file, actor string, at time.Time) string {
		t.Helper()
		made, _, err := annotate.Append([]byte(file),
			annotate.Act{Op: annotate.Open, Actor: actor, On: &annotate.Place{}, Text: "by " + actor}, at)
		if err != nil {
			t.Fatal(err)
		}
		return string(made)
	}
	first := add("", "alice", now)
	b.refs[ref] = store(first)
	lines := func(file string) []string { return strings.SplitAfter(strings.TrimSuffix(file, "\n"), "\n") }
	second := add(first, "carol", now)
	double := strings.Replace(lines(second)[1], "by carol", "by nobody", 1)
	both := add(second, "bob", now)

	for _, c := range []struct {
		what  string
		token records.Token
		file  string
		want  string
	}{
		{"an own act", carol, second, ""},
		{"an own act whose line is before that of another user", carol,
			strings.Join([]string{lines(second)[1], "\n", lines(second)[0]}, ""), ""},
		{"an act of another user", carol, add(first, "bob", now), `is by "bob", but the token is of carol`},
		{"an own act with one of another user", carol, both, `is by "bob", but the token is of carol`},
		{"an act of a user without a name", records.Token{ID: "x"}, add(first, "token:x", now), ""},
		{"an act under the name of another token", records.Token{ID: "x"}, add(first, "token:y", now),
			`is by "token:y", but the token is of token:x`},
		{"an act under the name of another user, by the owner", owner, second, `is by "carol", but the token is of token:o`},
		{"removal", carol, lines(second)[1], "annotations cannot be changed or removed"},
		{"removal by the owner", owner, "", ""},
		{"change", carol, strings.Replace(first, "by alice", "by nobody", 1), "is in use"},
		{"two acts with one id", carol, second + double + "\n", "is in use"},
		{"an act from the past", carol, add(first, "carol", now.Add(-time.Hour)), "which is not within 5m0s"},
		{"an act from the future", carol, add(first, "carol", now.Add(time.Hour)), "which is not within 5m0s"},
		{"not an act", carol, first + "{}\n", `annotation "{}" is not valid`},
	} {
		got, _ := b.one(c.token, ref, store(c.file))
		wants(t, c.what, got, c.want)
	}
	got, _ := b.one(carol, ref, b.commit("", map[string]string{"a": "1"}))
	wants(t, "another file", got, "ref does not contain the file annotations.jsonl")
	for _, name := range []string{"refs/afs/ann", "refs/afs/ann/work/x", "refs/afs/ann/.x"} {
		got, _ := b.one(carol, name, b.refs[ref])
		wants(t, name, got, "have the names of sessions")
	}
	got, _ = b.one(carol, session.AnnotationsRef("other"), b.refs[ref])
	wants(t, "annotations of another session", got, `is by "alice", but the token is of carol`)

	// A session is deleted and restored with exactly the annotations that it had.
	trash := "refs/afs/trash/work/1700000000/afs/ann/work"
	got, _ = b.one(carol, trash, store(add("", "bob", now)))
	wants(t, "forged copy in the trash", got, "the trash can contain only annotations that the repository has")
	got, _ = b.one(carol, trash, b.refs[ref])
	wants(t, "copy in the trash", got, "")
	remove := func(names ...string) []string {
		t.Helper()
		var updates []records.RefUpdate
		for _, name := range names {
			updates = append(updates, records.RefUpdate{Name: name, Old: b.refs[name], New: b.zeros()})
		}
		got, _ := b.check(carol, updates...)
		return got
	}
	b.refs[session.MetaRef("work")], b.refs[trash] = b.refs[ref], b.refs[ref]
	wants(t, "removal of the ref", remove(ref)[0],
		"the annotations of a session can be removed only together with the session")
	wants(t, "removal with the session", remove(ref, session.MetaRef("work"))[0], "")
	delete(b.refs, ref)
	got, _ = b.one(carol, ref, b.refs[trash])
	wants(t, "restored session", got, "")
	got, _ = b.one(carol, ref, b.commit(b.refs[trash], map[string]string{annotate.LogFile: first}))
	wants(t, "other commit with the same annotations", got, `is by "alice", but the token is of carol`)
}
