package gate

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

// TestHold checks that no push can remove refs of a session on hold, until a push with an owner token releases the
// hold.
func TestHold(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		b := newBed(t, f)
		meta := func(text string) string {
			return b.commit(b.refs[session.MetaRef("work")], map[string]string{session.MetaFile: text, "transitions.jsonl": ""})
		}
		held := meta(`{"version":99,"session":"work","hold":{"reason":"audit","by":"alice","since":"2026-01-02T03:04:05Z"}}`)
		released :=
			meta(`{"version":1,"hold":{"reason":"audit","by":"alice","since":"2026-01-02T03:04:05Z","released":"2026-02-02T03:04:05Z"}}`)
		first := b.commit("", map[string]string{"a": "1"})
		second := b.commit(first, map[string]string{"a": "2"})
		other := b.commit("", map[string]string{"a": "2"})
		segment, transcript := session.SegmentRef("work", "main", 1), session.TranscriptRef("work")
		b.refs[segment], b.refs[transcript], b.refs[session.MetaRef("work")] = first, first, held
		b.refs[session.SegmentRef("free", "main", 1)], b.refs[session.MetaRef("free")] = first, released
		owner := records.Token{ID: "o", Role: records.OwnerToken}
		const onHold = "session work is on hold since 2026-01-02 by alice: audit"
		for _, c := range []struct {
			what  string
			token records.Token
			ref   string
			to    string
			want  string
		}{
			{"new checkpoint", writer, segment, second, ""},
			{"new segment", writer, session.SegmentRef("work", "main", 2), second, ""},
			{"shorter segment", writer, segment, other, onHold},
			{"removed segment", writer, segment, "", onHold},
			{"removed segment, owner", owner, segment, "", onHold},
			{"erased transcript", writer, transcript, other, onHold},
			{"more transcript", writer, transcript, second, ""},
			{"removed session", owner, session.MetaRef("work"), "", onHold},
			{"release", writer, session.MetaRef("work"), released, "only an owner or admin token can release"},
			{"no metadata", writer, session.MetaRef("work"), first, "only an owner or admin token can release"},
			{"other reason", writer, session.MetaRef("work"),
				meta(`{"hold":{"reason":"x","by":"b","since":"2026-01-03T03:04:05Z"}}`), ""},
			{"release by an owner", owner, session.MetaRef("work"), released, ""},
			{"pin", writer, session.PinPrefix("work") + "p", second, ""},
			{"branch", writer, "refs/heads/afs/work/main", second, ""},
			{"other session", writer, session.SegmentRef("free", "main", 1), "", ""},
			{"deletion of another session", writer, session.MetaRef("free"), "", ""},
		} {
			got, _ := b.one(c.token, c.ref, c.to)
			wants(t, c.what, got, c.want)
		}
		// The removal of the metadata is refused, so the same push removes no other ref of the session.
		pin := session.PinPrefix("work") + "p"
		b.refs[pin] = first
		texts, _ := b.check(owner, records.RefUpdate{Name: pin, Old: first, New: b.zeros()},
			records.RefUpdate{Name: session.MetaRef("work"), Old: held, New: b.zeros()})
		wants(t, "pin, with the session", texts[0], onHold)
	}
}
