package reffile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// Local reads and changes files in the repository of a session on this host. It is used if the session remote is the
// embedded one, because this repository then is the session remote.
type Local struct {
	Repo *session.Repo
	// Now returns the time for new commits; nil: time.Now.
	Now func() time.Time
}

// Read returns the present version of a file. The version is zero if the ref does not exist.
func (l *Local) Read(_ context.Context, f File) (v Version, err error) {
	if v.Commit, err = l.Repo.Ref(f.Ref); err == nil && !v.Commit.IsZero() {
		v.Content, err = f.Content(l.Repo, v.Commit)
	}
	if err != nil {
		return Version{}, fmt.Errorf("read %s: %w", f.Ref, err)
	}
	return v, nil
}

// Change replaces a file by the result of the function edit; see Store.Change.
func (l *Local) Change(ctx context.Context, f File, message string,
	edit func(now Version) ([]byte, error)) (Version, error) {
	// The new objects are not reachable until the ref is updated, so gc must not run in between.
	defer l.Repo.Working()()
	for range MaxTries {
		v, err := l.try(ctx, f, message, edit)
		if !errors.Is(err, session.ErrRefMoved) {
			return v, err
		}
	}
	return Version{}, fmt.Errorf("write %s: %w", f.Ref, ErrBusy)
}

// try makes one attempt of Change. It returns an error that wraps session.ErrRefMoved if another writer has changed the
// ref.
func (l *Local) try(ctx context.Context, f File, message string,
	edit func(now Version) ([]byte, error)) (Version, error) {
	now, err := l.Read(ctx, f)
	if err != nil {
		return now, err
	}
	content, err := edit(now)
	if err != nil || content == nil {
		return now, err
	}
	if len(content) > MaxSize {
		return now, fmt.Errorf("write %s: %w", f.Ref, ErrTooLarge)
	}
	at := time.Now()
	if l.Now != nil {
		at = l.Now()
	}
	next, objects, err := f.Encode(l.Repo.Format(), now.Commit, content, message, at)
	if err == nil {
		err = l.Repo.Record(ctx, objects, []session.RefChange{{Name: f.Ref, Old: now.Commit, New: next}})
	}
	if err != nil {
		return now, fmt.Errorf("write %s: %w", f.Ref, err)
	}
	return Version{Commit: next, Content: content}, nil
}

// objects reads the objects of a repository.
type objects interface {
	Format() object.Format
	Get(id object.ID, limit int64) (object.Type, []byte, error)
}
