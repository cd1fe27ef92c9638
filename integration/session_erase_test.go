package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// records returns the transcript of a session.
func (w *world) records(session string) (records []control.TranscriptRecord) {
	w.Helper()
	for line := range strings.Lines(w.ok("session", "transcript", "--json", "-C", session)) {
		var record control.TranscriptRecord
		w.check(json.Unmarshal([]byte(line), &record))
		records = append(records, record)
	}
	return records
}

// A session that is resumed elsewhere continues its transcript, although the earlier records are only on the session
// remote.
func TestRecordAfterResume(t *testing.T) {
	s := newShared(t)
	s.w.unmount(s.m)
	o := s.w.elsewhere()
	m := o.bare(s.origin.URL("r.git"), append(s.remote.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	m.record(`{"turn":3}`)
	if got := o.records(m.Dir); len(got) != 3 || got[1].Checkpoint != got[2].Checkpoint ||
		string(got[1].Record) != `{"turn":2}` {
		t.Errorf("transcript after a record elsewhere: got %+v, want turns 1 to 3, the last two of one checkpoint", got)
	}
	o.ok("session", "fact", "add", "elsewhere", "-C", m.Dir)
	m.sync()
	again := s.w.elsewhere()
	back := again.bare(s.origin.URL("r.git"), append(s.remote.flags("work"), "--wait", "git", "--take-over")...)
	if got := again.records(back.Dir); len(got) != 3 {
		t.Errorf("transcript in a third place: got %d records, want 3", len(got))
	}
	again.unmount(back)
	o.unmount(m)
}

// A fork has the facts of its parent, wherever it is created, and also erases the records that the parent erases
// afterwards.
func TestForkKnowsFactsAndErasures(t *testing.T) {
	for _, base := range []string{"shared", "thin"} {
		t.Run(base, func(t *testing.T) {
			t.Setenv("ARTIFACTFS_SESSION_BASE", base)
			s := newShared(t)
			s.w.ok("session", "fact", "add", "the tests need port 5432", "-C", s.m.Dir)
			s.m.record(`{"text":"the word is xyzzy"}`, `{"text":"kept"}`)
			s.m.sync()
			here := s.w.place("here")
			s.w.ok("session", "fork", "-C", s.m.Dir, here)
			if facts := s.w.ok("session", "fact", "list", "-C", here); !strings.Contains(facts, "port 5432") {
				t.Errorf("facts of a fork in the same state directory: got %q", facts)
			}
			s.origin.SetRTT(100 * time.Millisecond) // so that the session remote answers before the mounted remote
			o := s.w.elsewhere()
			dir := o.place("fork")
			var reply control.MountReply
			link := strings.TrimSpace(s.w.ok("session", "link", "-C", s.m.Dir))
			o.json(&reply, "session", "fork", link, dir, "--session", "copy", "--wait", "git")
			fork := mounted{reply, o}
			s.origin.SetRTT(0)
			if facts := o.ok("session", "fact", "list", "-C", dir); !strings.Contains(facts, "port 5432") {
				t.Errorf("facts of a fork elsewhere: got %q", facts)
			}
			fork.record(`{"text":"of the fork"}`)
			fork.sync()
			o.unmount(fork)
			records := s.w.records(s.m.Dir)
			s.w.ok("session", "erase", "--record", records[2].ID, "--why", "asked for", "-C", s.m.Dir)
			s.m.sync()
			o.json(&reply, "session", "resume", "copy", dir)
			o.until("the fork elsewhere erased the record", func() bool {
				return !strings.Contains(o.ok("session", "transcript", "-C", dir), "xyzzy")
			})
			got := o.records(dir)
			if len(got) != 5 || got[2].Erased == nil || got[2].Erased.Why != "asked for" || got[3].Erased != nil ||
				got[4].Erased != nil {
				t.Errorf("transcript of the fork: got %+v, want five records, the third with a tombstone", got)
			}
			if all := o.sh(fork.sessionGit(),
				"git cat-file --batch --batch-all-objects --unordered 2>/dev/null || true"); strings.Contains(all, "xyzzy") &&
				base == "shared" {
				t.Logf("a pack that came from the session remote still holds the record")
			}
			o.unmount(fork)
			s.w.unmount(s.m)
			s.w.ok("unmount", here)
		})
	}
}
