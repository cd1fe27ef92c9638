package review

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/lifecycle"
	"github.com/artifactfs/artifactfs/session/review"
	"github.com/artifactfs/artifactfs/session/trash"
)

// meta returns the metadata of a session.
func (v *view) meta(ctx context.Context, name string) (m session.Meta, err error) {
	if err := v.session(name); err != nil {
		return m, err
	}
	var why error
	err = v.git.EachMeta(ctx, v.refs, []string{name}, func(_ int, found session.Meta, damage error) {
		if m = found; damage != nil {
			why = problem(Conflict, "the description of session %s cannot be read: %v", name, damage)
		}
	})
	return m, cmp.Or(err, why)
}

// lifeProblem returns the Problem of an error of packages session, profile and lifecycle, which name the cause.
func lifeProblem(err error) error {
	var held *session.HeldError
	var state *session.TransitionError
	var hold *profile.OnHoldError
	if errors.As(err, &held) || errors.As(err, &state) || errors.As(err, &hold) {
		return problem(Conflict, "%v", err)
	}
	return problem(Invalid, "%v", err)
}

// Change changes the state or the profile of a session: it closes, archives or reopens the session, or sets its title,
// task, owner and others. The state of a session that a machine uses cannot be changed. Change returns the metadata
// after the change.
func (s *Service) Change(ctx context.Context, by By, repo records.Repo, name string,
	c lifecycle.Change) (m session.Meta, err error) {
	c.Actor = by.actor()
	if c.Profile != nil {
		if err := c.Profile.Validate(); err != nil {
			return m, problem(Invalid, "%v", err)
		}
		if by.Token.Session != "" && c.Profile.Restricted() { // as for programs inside a mount
			return m, problem(Forbidden, "a token of a session cannot change owner, lifetime and hold of the session")
		}
	}
	err = s.act(ctx, by, repo, func(ctx context.Context, v *view) (made change, err error) {
		if m, err = v.meta(ctx, name); err != nil {
			return made, err
		}
		before, now := len(m.Transitions), s.o.Now().UTC()
		if err := c.Apply(&m, now); err != nil {
			return made, lifeProblem(err)
		}
		if c.Profile == nil && len(m.Transitions) == before {
			return made, nil
		}
		ref := session.MetaRef(name)
		parent, err := object.ParseIDOf(v.format, v.refs[ref])
		if err != nil {
			return made, err
		}
		next, objects, err := m.Encode(v.format, parent, now)
		return change{updates: []records.RefUpdate{v.update(ref, next.String())}, objects: objects}, err
	})
	return m, err
}

// Pin gives a checkpoint of a session a name, so that gc keeps the checkpoint. A pin of the same name moves. It returns
// the id of the checkpoint.
func (s *Service) Pin(ctx context.Context, by By, repo records.Repo,
	name, pin, checkpoint string) (id string, err error) {
	if err := session.ValidPin(pin); err != nil {
		return "", problem(Invalid, "%v", err)
	}
	err = s.act(ctx, by, repo, func(ctx context.Context, v *view) (c change, err error) {
		if err := v.session(name); err != nil {
			return c, err
		}
		if err := v.whole(name); err != nil {
			return c, err
		}
		p, err := v.checkpoint(ctx, name, checkpoint)
		if id = string(p.ID); err == nil {
			c.updates = []records.RefUpdate{v.update(session.PinPrefix(name)+pin, p.Commit.String())}
		}
		return c, err
	})
	return id, err
}

// Unpin removes the name of a checkpoint.
func (s *Service) Unpin(ctx context.Context, by By, repo records.Repo, name, pin string) error {
	return s.act(ctx, by, repo, func(_ context.Context, v *view) (c change, err error) {
		if err := v.session(name); err != nil {
			return c, err
		}
		if err := v.whole(name); err != nil {
			return c, err
		}
		ref := session.PinPrefix(name) + pin
		if session.ValidName(pin) != nil || v.refs[ref] == "" {
			return c, problem(Missing, "session %s has no pin %.140q", name, pin)
		}
		return change{updates: []records.RefUpdate{v.update(ref, "")}}, nil
	})
}

// Deleted is the result of Delete.
type Deleted struct {
	Refs int      // number of refs that were moved to the trash
	Kept []string // refs of the session that stay
}

// Delete moves a session to the trash, from which "artifactfs session undelete" restores it. A session that a machine
// uses is refused.
func (s *Service) Delete(ctx context.Context, by By, repo records.Repo, name string) (Deleted, error) {
	var made Deleted
	err := s.act(ctx, by, repo, func(ctx context.Context, v *view) (c change, err error) {
		made = Deleted{Kept: []string{}}
		m, err := v.meta(ctx, name)
		if err != nil {
			return c, err
		}
		if err := m.OnHold(name); err != nil {
			return c, lifeProblem(err)
		}
		for _, l := range m.Lanes {
			if held := m.Held(l.Name, session.Writer{}, s.o.Now()); held != nil {
				return c, lifeProblem(held)
			}
		}
		there := map[string]object.ID{}
		for ref, id := range v.refs {
			if there[ref], err = object.ParseIDOf(v.format, id); err != nil {
				return c, err
			}
		}
		layout, err := session.LayoutOf(m, there)
		if err != nil {
			return c, err
		}
		owner, err := session.OwnerBlob(v.format, name)
		if err != nil {
			return c, err
		}
		mine := trash.Of(layout, owner.ID, there)
		if head := headsPrefix + v.repo.DefaultBranch; !mine[head].IsZero() { // git removes no branch that HEAD names
			delete(mine, head)
			made.Kept = append(made.Kept, head)
		}
		now := s.o.Now()
		// The first update is the one whose refusal has the reason.
		meta := session.MetaRef(name)
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(mine)), func(ref string) bool { return ref == meta })
		for _, ref := range append([]string{meta}, names...) {
			c.updates = append(c.updates, v.update(ref, ""), v.update(trash.Ref(name, ref, now), mine[ref].String()))
		}
		made.Refs = len(mine)
		return c, nil
	})
	return made, err
}

// Policy is the policy of a repository.
type Policy struct {
	Text    string // contents of the file; "" if there is no policy
	Commit  string // commit that contains the file; "" if there is none
	Problem string // why the policy is not valid; "" if it is valid
}

// Policy returns the policy of a repository.
func (s *Service) Policy(ctx context.Context, by By, repo records.Repo) (p Policy, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		text, err := v.file(ctx, review.PolicyFile)
		if err != nil {
			return err
		}
		p = Policy{Text: string(text), Commit: v.refs[approval.PolicyRef]}
		if _, err := approval.ParsePolicy(text); err != nil {
			p.Problem = err.Error()
		}
		return nil
	})
	return p, err
}

// SetPolicy replaces the policy of a repository. If expect is not nil, the policy must have this commit, "" for no
// policy.
func (s *Service) SetPolicy(ctx context.Context, by By, repo records.Repo, text string, expect *string) error {
	if _, err := approval.ParsePolicy([]byte(text)); err != nil {
		return problem(Invalid, "%v", err)
	}
	return s.edit(ctx, by, repo, review.PolicyFile, "change the policy",
		func(_ context.Context, v *view, _ []byte) ([]byte, error) {
			if now := v.refs[approval.PolicyRef]; expect != nil && *expect != now {
				return nil, &Problem{Kind: Conflict, Text: "the policy was changed by others", Now: now}
			}
			return []byte(text), nil
		})
}
