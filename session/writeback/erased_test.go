package writeback

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/mounted"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// elsewhere returns the place on another host, which has a copy of the session's repository.
func (p *place) elsewhere() *place {
	p.T.Helper()
	dir := filepath.Join(p.T.TempDir(), "session.git")
	if err := os.CopyFS(dir, os.DirFS(p.Session)); err != nil {
		p.T.Fatal(err)
	}
	return &place{&mounted.Place{T: p.T, Origin: p.Origin, Store: p.Store, Git: p.Git, Work: p.Work, Session: dir,
		Base: p.Base, Format: p.Format}}
}

// opened returns the repository of the session, and a function that adds records to its transcript.
func (p *place) opened() (repo *session.Repo, add func(lines ...string)) {
	p.T.Helper()
	repo, err := p.Open()
	if err != nil {
		p.T.Fatal(err)
	}
	return repo, func(lines ...string) {
		p.T.Helper()
		now := time.Now()
		if _, err := transcript.Record(p.T.Context(), repo, transcript.Batch{Session: sessionName, Lane: "main",
			Checkpoint: session.NewCheckpointID(now), Time: now, Lines: lines}); err != nil {
			p.T.Fatal(err)
		}
	}
}

// erase erases the record that contains the word, as the command session erase does.
func (p *place) erase(word string, hold *profile.Hold) {
	p.T.Helper()
	repo, _ := p.opened()
	lines, _, err := transcript.Read(repo, sessionName, nil)
	if err != nil {
		p.T.Fatal(err)
	}
	note := session.Erasure{Time: time.Now().UTC(), By: "b"}
	for _, l := range lines {
		if strings.Contains(string(l.Record), word) {
			note.IDs = append(note.IDs, l.ID)
		}
	}
	erased, _, err := transcript.Erase(p.T.Context(), repo, transcript.Repeated(sessionName, note), nil)
	if err == nil {
		err = session.NoteErased(p.T.Context(), repo, sessionName, note)
	}
	if err == nil && hold != nil {
		_, err = session.ChangeMeta(p.T.Context(), repo, sessionName, func(m *session.Meta, _ time.Time) error {
			m.Hold = hold
			return nil
		})
	}
	if err != nil || len(erased) != 1 {
		p.T.Fatalf("erased %v, %v", erased, err)
	}
}

// TestErasedElsewhere checks that a host with an older transcript does not push records again that another host has
// erased: it erases them from its transcript before it pushes that. While the session is on hold, it pushes no
// transcript.
func TestErasedElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		later bool // the first host has a record that the second one has not
		moved bool // the first host has pushed it after the second one has erased, but before it has pushed
		hold  *profile.Hold
	}{
		"nothing new": {}, "a new record": {later: true}, "pushed before": {later: true, moved: true},
		"on hold": {later: true, hold: &profile.Hold{Since: time.Now().UTC(), By: "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, object.SHA1)
			to := newTestRemote(t, "path", object.SHA1, p.Origin.Path)
			repo, add := p.opened()
			if _, err := session.CreateMeta(t.Context(), repo, session.Meta{Session: sessionName,
				Remote: "file://" + p.Origin.Path}, "a"); err != nil {
				t.Fatal(err)
			}
			add(`{"text":"kept"}`, `{"text":"swordfish"}`)
			q := p.queue(to, QueueOptions{})
			wantSync(t, q)
			q.Close()

			other := p.elsewhere()
			other.erase("swordfish", c.hold)
			if c.later {
				add(`{"text":"later"}`)
			}
			if c.moved {
				q := p.queue(to, QueueOptions{})
				wantSync(t, q)
				q.Close()
			}
			q = other.queue(to, QueueOptions{})
			_ = syncAll(t, q) // its transcript may have diverged
			q.Close()

			q = p.queue(to, QueueOptions{})
			if err := syncAll(t, q); err != nil && !errors.Is(err, ErrMoved) { // the metadata are those of the other host
				t.Errorf("sync: %v", err)
			}
			q.Close()
			has := func(word string) bool {
				refs := run(t, to.dir, "", "for-each-ref", "--format=%(refname)", session.TranscriptRef(sessionName),
					session.DivergedPrefix)
				_, err := try(t, to.dir, "", append([]string{"grep", "-q", word}, strings.Fields(refs)...)...)
				return err == nil
			}
			if has("swordfish") || !has("kept") || has("later") != (c.later && c.hold == nil) {
				t.Errorf("the session remote has swordfish: %v, kept: %v, later: %v", has("swordfish"), has("kept"), has("later"))
			}
			if out := run(t, to.dir, "", "log", "--all", "-S", "swordfish", "--format=%D"); out != "" {
				t.Errorf("reachable commits have the erased record: %s", out)
			}
			lines, _, err := transcript.Read(repo, sessionName, nil)
			if err != nil || (lines[1].Erased != nil) != (c.hold == nil) || lines[0].Erased != nil {
				t.Errorf("transcript of the first host: %+v, %v", lines, err)
			}
		})
	}
}
