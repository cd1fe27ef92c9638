package review

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/review"
)

const headsPrefix = "refs/heads/"

// ApprovalRequest is what a user asks an approval for.
type ApprovalRequest = review.Request

// Approval is a request with its present state.
type Approval = review.Approval

// RequestApproval asks for an approval of the newest checkpoint of a session.
func (s *Service) RequestApproval(ctx context.Context, by By, repo records.Repo, name string,
	q ApprovalRequest) (Approval, error) {
	return s.approve(ctx, by, repo, name, approval.Request,
		func(ctx context.Context, v *view, r *review.Review) (approval.Record, error) {
			if q.Action != approval.Delete {
				if err := v.whole(name); err != nil {
					return approval.Record{}, err
				}
			}
			return r.Request(ctx, q)
		})
}

// Answer grants, denies or withdraws a request. The parameter request is its id, or the beginning of the id. A grant is
// refused unless the request is for the present state of the session and of the branch.
func (s *Service) Answer(ctx context.Context, by By, repo records.Repo, name string, op approval.Op,
	request, text string) (
	Approval, error) {
	return s.approve(ctx, by, repo, name, op,
		func(ctx context.Context, _ *view, r *review.Review) (approval.Record, error) {
			record, err := r.Answer(ctx, op, request, by.actor(), text)
			if p := new(Problem); errors.As(err, &p) && p.Kind == Conflict && record.Request != "" {
				p.Text = "request " + record.Request + " cannot be granted: " + p.Text
			}
			return record, err
		})
}

// approve adds the record that the function complete returns to the approvals of a session.
func (s *Service) approve(ctx context.Context, by By, repo records.Repo, name string, op approval.Op,
	complete func(ctx context.Context, v *view, r *review.Review) (approval.Record, error)) (made Approval, err error) {
	message := fmt.Sprintf("%s by %s", op, by.actor())
	err = s.edit(ctx, by, repo, review.ApprovalsOf(name), message,
		func(ctx context.Context, v *view, now []byte) ([]byte, error) {
			r, err := v.review(ctx, name, now)
			if err != nil {
				return nil, err
			}
			next, err := complete(ctx, v, r)
			if err != nil {
				return nil, err
			}
			next.Actor, next.Token = by.actor(), by.Token.ID
			l := r.Log
			file, _, err := l.Append(now, next, s.o.Now())
			if err != nil {
				return nil, problem(Invalid, "%s: %v", op, err)
			}
			made, err = r.Added(ctx, l)
			return file, err
		})
	return made, err
}

// Approvals returns the requests of a session with their states, newest first.
func (s *Service) Approvals(ctx context.Context, by By, repo records.Repo, name string) (all []Approval, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		text, err := v.file(ctx, review.ApprovalsOf(name))
		if err != nil {
			return err
		}
		r, err := v.review(ctx, name, text)
		if err != nil {
			return err
		}
		all, err = r.States(ctx)
		return err
	})
	return all, err
}

// review returns the state of the approvals of a session, whose file has the contents text.
func (v *view) review(ctx context.Context, name string, text []byte) (r *review.Review, err error) {
	if err := v.session(name); err != nil {
		return nil, err
	}
	r = &review.Review{Source: source{v, name}, Session: name, Default: v.repo.DefaultBranch, Now: v.s.o.Now(),
		Tip: func(target string) string { return v.refs[target] }}
	if r.Log, err = approval.ParseLog(name, text); err != nil {
		return nil, problem(Conflict, "the approvals of session %s: %v", name, err)
	}
	if r.Policy, err = review.ReadPolicy(v.file(ctx, review.PolicyFile)); err != nil {
		return nil, err
	}
	r.Newest, err = v.newest(ctx, name)
	return r, err
}

// source is a session of the repository, for package session/review.
type source struct {
	v    *view
	name string
}

var _ review.Source = source{}

// Checkpoint implements review.Source.
func (s source) Checkpoint(ctx context.Context, name string) (session.Checkpoint, error) {
	return s.v.checkpoint(ctx, s.name, name)
}

// Uncommitted implements review.Source.
func (s source) Uncommitted(ctx context.Context, p session.Checkpoint) ([]string, error) {
	head, err := s.v.tree(ctx, p.Head.String())
	if err != nil {
		return nil, err
	}
	return s.v.changed(ctx, s.v.git.Dir, head, p.Tree.String())
}

// Join implements review.Source.
func (s source) Join(ctx context.Context, p session.Checkpoint, base, target string) (review.Joined, error) {
	return s.v.join(ctx, p.Head, base, target)
}

// newest returns the newest checkpoint of a session, the zero Checkpoint if there is none.
func (v *view) newest(ctx context.Context, name string) (newest session.Checkpoint, err error) {
	if p, ok := v.points[name]; ok {
		return p, nil
	}
	all, err := v.git.Newest(ctx, v.of(name))
	if p, ok := all[name]; ok && err == nil {
		err = v.read(ctx, []gitread.Point{p}, func(p session.Checkpoint) { newest = p })
	}
	if err == nil {
		v.points[name] = newest
	}
	return newest, err
}
