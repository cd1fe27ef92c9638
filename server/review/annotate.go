package review

import (
	"cmp"
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Annotation is an annotation that a user makes. Without Checkpoint, Commit and Path, a new thread is about the whole
// session.
type Annotation struct {
	Op     annotate.Op
	Thread string // id of the thread, or the beginning of the id; "" for Open
	Text   string

	// The fields below are for Open only.
	// name of a checkpoint, as for gitread.Repo.Checkpoint; "" with a Path means the newest one, unless Commit is set
	Checkpoint string
	Commit     string // full id of a commit
	Path       string // path of a file in the checkpoint or commit
	Line       int    // first line of the file, counted from 1; 0: the whole file
	End        int    // last line; 0: only Line
}

// Annotated is the result of an annotation.
type Annotated struct {
	ID       string // id of the annotation
	Thread   annotate.Thread
	Redacted int64 // number of secrets that were removed from the text
}

// annotationsOf names the file with the annotations of a session.
func annotationsOf(name string) reffile.File {
	return reffile.File{Ref: session.AnnotationsRef(name), Name: annotate.LogFile}
}

// Annotate begins a thread of annotations of a session, or adds to a thread.
func (s *Service) Annotate(ctx context.Context, by By, repo records.Repo, name string,
	a Annotation) (Annotated, error) {
	var made Annotated
	act := annotate.Act{Op: a.Op, Actor: by.actor(), Thread: a.Thread}
	act.Text, made.Redacted = transcript.Redact(a.Text)
	err := s.edit(ctx, by, repo, annotationsOf(name), "annotate",
		func(ctx context.Context, v *view, now []byte) ([]byte, error) {
			if err := v.session(name); err != nil {
				return nil, err
			}
			next := act
			if a.Op == annotate.Open {
				on, err := v.annotated(ctx, name, a)
				if err != nil {
					return nil, annotationProblem(err)
				}
				next.On = &on
			}
			file, done, thread, err := annotate.Add(now, next, s.o.Now())
			made.ID, made.Thread = done.ID, thread
			return file, annotationProblem(err)
		})
	return made, err
}

// annotationProblem returns the Problem of an error of package annotate.
func annotationProblem(err error) error {
	switch {
	case errors.Is(err, annotate.ErrNoThread):
		return problem(Missing, "the session has no such thread")
	case errors.Is(err, annotate.ErrNoFile):
		return problem(Missing, "%v", err)
	case errors.Is(err, annotate.ErrAmbiguous), errors.Is(err, annotate.ErrInvalid), errors.Is(err, annotate.ErrNotFile),
		errors.Is(err, annotate.ErrLines):
		return problem(Invalid, "%v", err)
	case errors.Is(err, annotate.ErrFull):
		return problem(Conflict, "%v", err)
	}
	return err
}

// annotated returns the object of a new thread.
func (v *view) annotated(ctx context.Context, name string, a Annotation) (on annotate.Place, err error) {
	if a.Checkpoint == "" && a.Commit == "" && a.Path == "" {
		return on, nil
	}
	commit := a.Commit
	switch {
	case commit != "" && a.Checkpoint != "":
		return on, problem(Invalid, "an annotation is about a checkpoint or about a commit, not about both")
	case commit != "":
		on.Commit = commit
	default:
		p, base, err := v.checkpointOrBase(ctx, name, a.Checkpoint)
		if err != nil {
			return on, err
		}
		if on.Checkpoint, commit = string(p.ID), p.Commit.String(); base != "" {
			on.Commit, commit = base, base
		}
	}
	tree, err := v.tree(ctx, commit)
	if err != nil || a.Path == "" {
		return on, err
	}
	id, err := object.ParseIDOf(v.format, tree)
	if err != nil {
		return on, err
	}
	return annotate.On(ctx, gitread.NewAnnotated(v.git, ""), on, id, a.Path, a.Line, a.End)
}

// checkpointOrBase returns a checkpoint of a session. If no checkpoint is named and the session has none, because
// nothing has changed, it returns the commit from which the session was started.
func (v *view) checkpointOrBase(ctx context.Context,
	name, point string) (p session.Checkpoint, base string, err error) {
	p, err = v.checkpoint(ctx, name, point)
	if err == nil || point != "" || len(v.of(name)) > 0 || v.thin[name] != "" {
		return p, "", err
	}
	m, failed := v.meta(ctx, name)
	if failed != nil || m.Base == "" {
		return p, "", err
	}
	return session.Checkpoint{}, m.Base, nil
}

// checkpoint returns a checkpoint of a session; the name "" stands for the newest one.
func (v *view) checkpoint(ctx context.Context, name, point string) (p session.Checkpoint, err error) {
	if point == "" {
		point = "@"
	}
	commit, err := v.git.Checkpoint(ctx, v.of(name), name, point)
	switch {
	case errors.Is(err, read.ErrNotFound) && point == "@":
		return p, problem(Missing, "the repository has no checkpoint of session %s that the server can read", name)
	case errors.Is(err, read.ErrNotFound):
		return p, problem(Missing, "session %s has no checkpoint %.140q", name, point)
	case errors.Is(err, gitread.ErrAmbiguous), errors.Is(err, gitread.ErrCheckpointName):
		return p, problem(Invalid, "checkpoint %.140q: %v", point, err)
	case err != nil:
		return p, err
	}
	var invalid error
	err = v.git.Contents(ctx, []string{commit}, object.MaxCommitSize, func(_ int, c read.Content) {
		p, invalid = gitread.CheckpointOf(c)
	})
	return p, cmp.Or(err, invalid)
}

// tree returns the tree of a commit.
func (v *view) tree(ctx context.Context, commit string) (string, error) {
	if !object.ValidID(commit) {
		return "", problem(Invalid, "a commit must be named by its full id")
	}
	o, err := v.git.Stat(ctx, commit, "")
	if errors.Is(err, read.ErrNotFound) {
		return "", problem(Missing, "the repository has no commit %s", commit)
	}
	return o.ID, err
}
