// Package reffile reads and changes small files that are stored under refs of a session remote, such as the annotations
// of a session. Store needs no mount and no local repository, so that a reviewer on any machine can use it. Local does
// the same in the repository of a session on this host.
//
// The ref of a file points to a commit whose tree contains only the file. The parent of the commit is the previous
// version. Changes are compare-and-swap: two writers at the same time never lose a change.
package reffile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

const (
	// MaxSize is the maximum size of a file in bytes.
	MaxSize = 16 << 20
	// MaxTries is the maximum number of attempts to change a file that other writers change at the same time.
	MaxTries = 20
)

// Pauses are the pauses between the attempts of Change.
var Pauses = backoff.Backoff{First: 20 * time.Millisecond, Longest: 400 * time.Millisecond}

var (
	// ErrTooLarge means that a file is larger than MaxSize.
	ErrTooLarge = errors.New("file is larger than 16 MiB")
	// ErrNotFile means that a ref does not point to a commit with the file.
	ErrNotFile = errors.New("ref does not contain the file")
	// ErrBusy means that a file could not be changed, because other writers changed it during each of MaxTries
	// attempts.
	ErrBusy = errors.New("other writers change the ref all the time")
)

// File names a file that is stored under a ref.
type File struct {
	Ref  string // full name of the ref
	Name string // name of the file in the tree of the ref's commit
}

// Version is one version of a file.
type Version struct {
	Commit  object.ID // commit to which the ref points; zero if the ref does not exist
	Content []byte    // contents of the file; nil if the ref does not exist
}

// Store reads and changes files of one session remote. It must not be used by several goroutines at the same time.
type Store struct {
	// Remote is the session remote. The caller closes it.
	Remote *transport.Remote
	// Dir is a directory for temporary files.
	Dir string
	// Now returns the time for new commits; nil: time.Now.
	Now func() time.Time
}

// Read returns the present version of a file. The version is zero if the ref does not exist.
func (s *Store) Read(ctx context.Context, f File) (Version, error) {
	refs, err := s.Remote.Refs(ctx, []string{f.Ref})
	if err != nil {
		return Version{}, fmt.Errorf("read %s: %w", f.Ref, err)
	}
	for _, ref := range refs.List {
		if ref.Name == f.Ref {
			return s.fetch(ctx, f, ref.ID)
		}
	}
	return Version{}, nil
}

// ReadAt returns the version of a file in the given commit, to which the ref points or has pointed.
func (s *Store) ReadAt(ctx context.Context, f File, commit object.ID) (Version, error) {
	return s.fetch(ctx, f, commit)
}

// Change replaces a file by the result of the function edit, which gets the present version, and returns the new
// version. If another writer changes the file at the same time, Change calls edit again with the newer version. If edit
// returns nil, nothing is written. Change returns errors of edit unchanged, and wraps errors of the type
// *transport.Rejected.
func (s *Store) Change(ctx context.Context, f File, message string,
	edit func(now Version) ([]byte, error)) (Version, error) {
	var v Version
	err := Swap(ctx, s.Remote, f.Ref, func(format object.Format, old object.ID) (object.ID, []odb.Outgoing, error) {
		v = Version{}
		var err error
		if !old.IsZero() {
			if v, err = s.fetch(ctx, f, old); err != nil {
				return old, nil, err
			}
		}
		content, err := edit(v)
		if err != nil || content == nil {
			return old, nil, err
		}
		if len(content) > MaxSize {
			return old, nil, fmt.Errorf("write %s: %w", f.Ref, ErrTooLarge)
		}
		next, objects, err := f.Encode(format, old, content, message, s.now())
		if err == nil {
			v = Version{Commit: next, Content: content}
		}
		return next, objects, err
	})
	return v, err
}

// Swap changes a ref of a remote by compare-and-swap. It calls the function plan with the present id of the ref, which
// is zero if the ref does not exist. plan returns the new id, and the objects that the remote lacks. If another writer
// changes the ref at the same time, Swap calls plan again. If the id does not change, nothing is written. Swap returns
// errors of plan unchanged, and wraps errors of the type *transport.Rejected.
func Swap(ctx context.Context, remote *transport.Remote, ref string,
	plan func(f object.Format, old object.ID) (object.ID, []odb.Outgoing, error)) error {
	attempt := func() error {
		push, err := remote.OpenPush(ctx, []string{ref})
		if err != nil {
			return fmt.Errorf("write %s: %w", ref, err)
		}
		defer push.Close()
		var old object.ID
		for _, r := range push.Refs {
			if r.Name == ref {
				old = r.ID
			}
		}
		next, objects, err := plan(push.Format, old)
		if err != nil || next == old {
			return err
		}
		results, err := push.Send(ctx, transport.PushRequest{
			Updates: []transport.RefUpdate{{Name: ref, Old: old, New: next}},
			Pack:    func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, push.Format, objects) },
		})
		if err == nil {
			err = results[0]
		}
		if err != nil {
			err = fmt.Errorf("write %s: %w", ref, err)
		}
		return err
	}
	for try := range MaxTries {
		if try > 0 && !Pauses.Wait(ctx, try) {
			return ctx.Err()
		}
		err := attempt()
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved {
			return err
		}
	}
	return fmt.Errorf("write %s: %w", ref, ErrBusy)
}

func (s *Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Encode returns the id of a new commit that stores the contents of a file, and the objects of the commit. The zero id
// as parent means that the file has no previous version.
func (f File) Encode(
	format object.Format, parent object.ID, content []byte, message string, at time.Time,
) (object.ID, []odb.Outgoing, error) {
	blob, err := session.Outgoing(format, object.Blob, content)
	if err != nil {
		return object.ID{}, nil, err
	}
	entries := []object.TreeEntry{{Name: f.Name, Mode: object.ModeFile, ID: blob.ID}}
	tree, err := session.Outgoing(format, object.Tree, session.EncodeTree(entries))
	if err != nil {
		return object.ID{}, nil, err
	}
	commit, err := session.NewCommit(format, tree.ID, parent, at, message)
	return commit.ID, []odb.Outgoing{blob, tree, commit}, err
}

// fetch fetches a commit into a temporary store, and returns the version of the file in it.
func (s *Store) fetch(ctx context.Context, f File, commit object.ID) (v Version, err error) {
	defer func() {
		if err != nil {
			v, err = Version{}, fmt.Errorf("read %s: %w", f.Ref, err)
		}
	}()
	dir, remove, err := disk.TempDir(s.Dir, "reffile")
	if err != nil {
		return v, err
	}
	defer remove()
	caps, err := s.Remote.Capabilities(ctx)
	if err != nil {
		return v, err
	}
	req := transport.FetchRequest{Wants: []object.ID{commit}}
	if caps.Shallow {
		req.Depth = 1
	}
	objects, err := odb.Open(dir, caps.Format)
	if err != nil {
		return v, err
	}
	defer objects.Close()
	answer, err := s.Remote.Fetch(ctx, req)
	if err != nil {
		return v, err
	}
	defer answer.Pack.Close()
	limits := odb.IngestOptions{MaxObjectSize: MaxSize, Promisor: true, Temporary: true}
	if _, err := objects.Ingest(ctx, answer.Pack, limits, nil); err != nil {
		return v, err
	}
	v.Commit = commit
	v.Content, err = f.Content(objects, commit)
	return v, err
}

// Content returns the contents of the file in the tree of a commit of a local store. It returns ErrNotFile if the
// object is not a commit with the file, and odb.ErrTooLarge if the file is larger than MaxSize.
func (f File) Content(from objects, commit object.ID) ([]byte, error) {
	text, err := get(from, commit, object.Commit, object.MaxCommitSize)
	if err != nil {
		return nil, err
	}
	info, err := object.ParseCommit(from.Format(), text)
	if err != nil {
		return nil, err
	}
	if text, err = get(from, info.Tree, object.Tree, object.MaxTreeSize); err != nil {
		return nil, err
	}
	entries, err := object.ParseTree(from.Format(), text)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name == f.Name {
			return get(from, e.ID, object.Blob, MaxSize)
		}
	}
	return nil, fmt.Errorf("%w %s", ErrNotFile, f.Name)
}

// get returns the contents of an object. It returns ErrNotFile if the object has another type than want.
func get(from objects, id object.ID, want object.Type, limit int64) ([]byte, error) {
	t, content, err := from.Get(id, limit)
	if err == nil && t != want {
		err = fmt.Errorf("%w: object %s is a %s", ErrNotFile, id, t)
	}
	return content, err
}
