package review

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

// A fork copies the refs of its parent, and with them the descriptions of sessions. Machines use these sessions only in
// the parent.

// Copies describes the sessions that a fork has copied.
type Copies struct {
	Link        func(session string) string // returns a link to the session in the parent
	Transcripts bool                        // the transcripts stay in the fork
}

// CloseCopies closes all sessions of a new fork, and stores a link to the original in the description of each. It
// removes their transcripts, except those of sessions on hold, and those in the containers of thin sessions. The
// parameter by is the user who has made the fork.
func (s *Service) CloseCopies(ctx context.Context, by By, fork records.Repo, o Copies) error {
	fork.ReadOnly = false // that a fork is read-only concerns later pushes
	return s.act(ctx, by, fork, func(ctx context.Context, v *view) (c change, err error) {
		var errs []error
		err = v.git.EachMeta(ctx, v.refs, v.names(""), func(_ int, m session.Meta, damage error) {
			if damage == nil { // no machine can use a session without a valid description
				errs = append(errs, v.closeCopy(&c, m, o, by.actor()))
			}
		})
		return c, errors.Join(append(errs, err)...)
	})
}

// closeCopy adds to c the updates of refs that close the copy of one session in a fork of the repository.
func (v *view) closeCopy(c *change, m session.Meta, o Copies, actor string) error {
	ref, now := session.MetaRef(m.Session), v.s.o.Now().UTC()
	parent, err := object.ParseIDOf(v.format, v.refs[ref])
	if err != nil {
		return err
	}
	m.Copied(o.Link(m.Session), actor, now)
	next, objects, err := m.Encode(v.format, parent, now)
	if err != nil {
		return err
	}
	c.updates, c.objects = append(c.updates, v.update(ref, next.String())), append(c.objects, objects...)
	if transcript := session.TranscriptRef(m.Session); !o.Transcripts && v.refs[transcript] != "" && !m.Profile.Held() {
		c.updates = append(c.updates, v.update(transcript, ""))
	}
	return nil
}
