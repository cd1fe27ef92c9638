// Package lifecycle changes the state and the profile of a session.
package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Change is a change of the state of a session, such as closing it, or of its profile, such as its title.
type Change struct {
	State   session.LifeState // new state; "": the state is not changed
	Reason  string            // reason of the new state
	Profile *profile.Change   // change of the profile; nil: the profile is not changed
	Actor   string            // user who makes the change
}

// Apply makes the change in the metadata m at the time now. It removes text that looks like a secret from the title,
// the task, and the reason of a hold. It returns the errors of profile.Apply and Meta.Become.
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

// Local changes the metadata of the session name in its repository on this host.
func Local(ctx context.Context, r *session.Repo, name string, c Change) error {
	_, err := session.ChangeMeta(ctx, r, name, c.Apply)
	return err
}

// OnHold returns an error of the type *profile.OnHoldError if a hold applies to the session in a repository. It returns
// nil if the repository does not have the session.
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
