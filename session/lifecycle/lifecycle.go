// Package lifecycle changes the state and the profile of a session: on this host (Local), or on a session remote, without a mount (Remote).
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

const (
	// tries is the number of attempts to change the metadata on a session remote while other machines change it at the same time.
	tries = 20
	// pause is the time before the second attempt. It grows by the same time before each further attempt.
	pause = 20 * time.Millisecond
)

// Change is a change of a session.
type Change struct {
	State   session.LifeState // new state; "": the state is not changed
	Reason  string            // reason of the new state
	Profile *profile.Change   // change of the profile; nil: none
	Actor   string            // user who makes the change
}

// Apply makes the change in the metadata of a session. Text that looks like a secret is removed from the title, the task, and the reason
// of a hold.
func (c Change) Apply(m *session.Meta, now time.Time) error {
	if c.Profile != nil {
		p := *c.Profile
		p.Title, p.Task, p.Hold = clean(p.Title), clean(p.Task), clean(p.Hold)
		if err := m.Profile.Apply(p, c.Actor, now); err != nil {
			return err
		}
	}
	if c.State == "" {
		return nil
	}
	return m.Become(session.Transition{State: c.State, Actor: c.Actor, Reason: c.Reason}, now)
}

func clean(text *string) *string {
	if text == nil {
		return nil
	}
	without, _ := transcript.Redact(*text)
	return &without
}

// Local changes a session in its repository on this host.
func Local(ctx context.Context, r *session.Repo, name string, c Change) error {
	_, err := session.ChangeMeta(ctx, r, name, c.Apply)
	return err
}

// OnHold returns an error of the type *profile.OnHoldError if a hold applies to the session in a repository. It returns nil if the
// repository does not have the session.
func OnHold(r *session.Repo, name string) error {
	m, _, err := session.ReadMeta(r, name)
	if errors.Is(err, session.ErrNoMeta) {
		return nil
	}
	if err != nil {
		return err
	}
	return m.OnHold(name)
}

// Remote changes a session on its session remote, by compare-and-swap of its metadata, and returns the new metadata. Temporary files are
// created in dir. If another machine changes the metadata at the same time, Remote starts again. It returns fault.NoSuchSessionError if
// the session remote does not have the session.
func Remote(ctx context.Context, remote *transport.Remote, dir, name string, c Change) (session.Meta, error) {
	for try := range tries {
		if try > 0 && !clock.Wait(ctx, time.Duration(try)*pause) {
			return session.Meta{}, ctx.Err()
		}
		m, err := attempt(ctx, remote, dir, name, c)
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved {
			return m, err
		}
	}
	return session.Meta{}, fmt.Errorf("write session %s: %w", name, session.ErrRefMoved)
}

// attempt makes one attempt for Remote.
func attempt(ctx context.Context, remote *transport.Remote, dir, name string, c Change) (m session.Meta, err error) {
	ref := session.MetaRef(name)
	push, err := remote.OpenPush(ctx, []string{ref})
	if err != nil {
		return m, fault.SessionRemote(remote, err)
	}
	defer push.Close()
	var old object.ID
	for _, r := range push.Refs {
		if r.Name == ref {
			old = r.ID
		}
	}
	if old.IsZero() {
		return m, fault.NoSuchSessionError{Remote: remote.URL()}
	}
	if m, err = resume.ReadMeta(ctx, dir, remote, old); err != nil {
		return m, fault.SessionRemote(remote, err)
	}
	before, now := m.Clone(), time.Now().UTC()
	if err := c.Apply(&m, now); err != nil || m.Equal(before) {
		return m, err
	}
	next, objects, err := m.Encode(push.Format, old, now)
	if err != nil {
		return m, err
	}
	results, err := push.Send(ctx, transport.PushRequest{
		Updates: []transport.RefUpdate{{Name: ref, Old: old, New: next}},
		Pack:    func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, push.Format, objects) },
	})
	if err == nil {
		err = results[0]
	}
	if err != nil {
		err = fault.SessionRemote(remote, err)
	}
	return m, err
}
