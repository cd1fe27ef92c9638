package cacheentry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// Store reads and changes the entries of one session remote. It must not be used by several goroutines at the same
// time.
type Store struct {
	Place Place
	// Now returns the present time, which decides whether an entry has expired; nil stands for time.Now.
	Now func() time.Time
}

func (s *Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Value is the value of an entry that is to be stored.
type Value struct {
	Size int64
	// Open returns a reader of the value. It is called several times and must return the same bytes each time.
	Open func() (io.ReadCloser, error)
}

// PutRequest is the request to store an entry.
type PutRequest struct {
	Key   string
	Value Value
	TTL   time.Duration // time after which the entry expires; 0: it does not expire
	// Expect is the hash that the present value of the entry must have. None means that the entry must not exist; ""
	// means that the present value does not matter.
	Expect         string
	Actor, Session string // fields of the stored Entry
}

// present is the state of an entry before a change.
type present struct {
	commit object.ID // commit of the ref; zero if the ref does not exist
	entry  Entry     // description; the zero value if there is no entry, or if it has expired or is damaged
}

// Describe returns the description of an entry. It returns ErrNone if there is no entry.
func (s *Store) Describe(ctx context.Context, key string) (Entry, error) { return s.Get(ctx, key, nil) }

// Get writes the value of an entry to w, unless w is nil, and returns the description of the entry. It returns ErrNone
// if there is no entry. If it returns another error, w may have received a part of the value.
func (s *Store) Get(ctx context.Context, key string, w io.Writer) (Entry, error) {
	if err := ValidKey(key); err != nil {
		return Entry{}, err
	}
	for try := 1; ; try++ {
		e, written, err := s.get(ctx, key, w)
		// The server may have removed a value that was replaced after its ref was read.
		gone := errors.As(err, new(transport.NotOurRef)) || errors.Is(err, odb.ErrNotFound)
		if err == nil || !gone || written || try == reffile.MaxTries || !reffile.Pauses.Wait(ctx, try) {
			return e, err
		}
	}
}

// get makes one attempt of Store.Get. The result written reports whether w has received at least a part of the value.
func (s *Store) get(ctx context.Context, key string, w io.Writer) (e Entry, written bool, err error) {
	commit, err := s.commit(ctx, key)
	if err != nil {
		return Entry{}, false, err
	}
	if commit.IsZero() {
		return Entry{}, false, ErrNone
	}
	depth := 1
	if w != nil {
		depth = 2
	}
	err = s.Place.Read(ctx, []object.ID{commit}, depth, func(objects *odb.Store) error {
		var value object.ID
		if e, value, err = describe(objects, Ref(key), commit); err != nil {
			return err
		}
		if e.Expired(s.now()) {
			return ErrNone
		}
		if w == nil {
			return nil
		}
		written, err = copyValue(objects, e, value, w)
		return err
	})
	if err != nil {
		return Entry{}, written, err
	}
	return e, false, nil
}

// commit returns the id of the commit that the ref of an entry points to. The id is zero if the ref does not exist.
func (s *Store) commit(ctx context.Context, key string) (object.ID, error) {
	refs, err := s.Place.Refs(ctx, Ref(key))
	if err != nil {
		return object.ID{}, err
	}
	for _, ref := range refs {
		if ref.Name == Ref(key) {
			return ref.ID, nil
		}
	}
	return object.ID{}, nil
}

// present returns the present state of an entry. An entry that has expired or is damaged counts as missing, so that it
// can be replaced.
func (s *Store) present(ctx context.Context, key string) (p present, err error) {
	if p.commit, err = s.commit(ctx, key); err != nil || p.commit.IsZero() {
		return p, err
	}
	err = s.Place.Read(ctx, []object.ID{p.commit}, 1, func(objects *odb.Store) error {
		p.entry, _, err = describe(objects, Ref(key), p.commit)
		return err
	})
	if errors.Is(err, ErrDamaged) {
		return present{commit: p.commit}, nil
	}
	if err == nil && p.entry.Expired(s.now()) {
		p.entry = Entry{}
	}
	return p, err
}

// check returns a *ConflictError unless the entry has the expected hash. See PutRequest.Expect.
func (p present) check(expect string) error {
	if expect == "" || expect == None && p.entry.Hash == "" || expect == p.entry.Hash {
		return nil
	}
	return &ConflictError{Present: p.entry}
}

// Put stores an entry and returns its description. If the present entry does not have the expected hash, Put changes
// nothing and returns a *ConflictError with the present hash.
func (s *Store) Put(ctx context.Context, r PutRequest) (Entry, error) {
	if err := errors.Join(ValidKey(r.Key), ValidExpect(r.Expect)); err != nil {
		return Entry{}, err
	}
	if r.Value.Size > MaxValue {
		return Entry{}, ErrTooLarge
	}
	format, err := s.Place.Format(ctx)
	if err != nil {
		return Entry{}, err
	}
	blob, hash, err := r.Value.hash(format)
	if err != nil {
		return Entry{}, err
	}
	now := s.now().UTC().Truncate(time.Millisecond)
	e := Entry{Key: r.Key, Size: r.Value.Size, Hash: hash, Time: now, Actor: r.Actor, Session: r.Session}
	if r.TTL > 0 {
		e.Expires = now.Add(r.TTL)
	}
	return e, s.change(ctx, r.Key, r.Expect, func(present) (object.ID, []odb.Outgoing, error) {
		return e.objects(format, blob)
	})
}

// Delete removes an entry. It returns ErrNone if the entry does not exist, and a *ConflictError if the entry does not
// have the expected hash. See PutRequest.Expect for the parameter expect.
func (s *Store) Delete(ctx context.Context, key, expect string) error {
	if err := errors.Join(ValidKey(key), ValidExpect(expect)); err != nil {
		return err
	}
	return s.change(ctx, key, expect, func(p present) (object.ID, []odb.Outgoing, error) {
		if p.commit.IsZero() {
			return object.ID{}, nil, ErrNone
		}
		return object.ID{}, nil, nil
	})
}

// change sets the ref of an entry to the commit that the function next returns, and stores the objects that next
// returns. If the commit is zero, change removes the ref. If another writer changes the ref at the same time, change
// tries again, up to maxTries times.
func (s *Store) change(ctx context.Context, key, expect string,
	next func(p present) (object.ID, []odb.Outgoing, error)) error {
	for try := range reffile.MaxTries {
		if try > 0 && !reffile.Pauses.Wait(ctx, try) {
			return ctx.Err()
		}
		p, err := s.expected(ctx, key, expect)
		if err != nil {
			return err
		}
		commit, objects, err := next(p)
		if err != nil {
			return err
		}
		results, err := s.Place.Update(ctx, []transport.RefUpdate{{Name: Ref(key), Old: p.commit, New: commit}}, objects)
		if err == nil {
			err = results[0]
		}
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved {
			return err
		}
	}
	return ErrBusy
}

// expected returns the present state of an entry, or a *ConflictError if the entry does not have the expected hash. It
// reads the description of the entry only if expect is not "".
func (s *Store) expected(ctx context.Context, key, expect string) (p present, err error) {
	if expect == "" {
		p.commit, err = s.commit(ctx, key)
		return p, err
	}
	if p, err = s.present(ctx, key); err != nil {
		return p, err
	}
	return p, p.check(expect)
}

// hash reads a value once, and returns it as a git blob, and its SHA-256 in hexadecimal.
func (v Value) hash(format object.Format) (blob odb.Outgoing, hash string, err error) {
	r, err := v.Open()
	if err != nil {
		return blob, "", fmt.Errorf("read value: %w", err)
	}
	defer r.Close()
	id, sum := object.NewHasher(format, object.Blob, v.Size), sha256.New()
	if _, err := io.Copy(io.MultiWriter(id, sum), r); err != nil {
		return blob, "", fmt.Errorf("read value: %w", err)
	}
	blob = odb.Outgoing{Type: object.Blob, Size: v.Size, Open: v.Open}
	if blob.ID, err = id.Sum(); err != nil {
		return blob, "", fmt.Errorf("read value: %w", err)
	}
	return blob, hex.EncodeToString(sum.Sum(nil)), nil
}

// objects returns all git objects of an entry, and the id of the commit for its ref.
func (e Entry) objects(format object.Format, blob odb.Outgoing) (object.ID, []odb.Outgoing, error) {
	text, err := e.encode()
	if err != nil {
		return object.ID{}, nil, err
	}
	info, err := session.Outgoing(format, object.Blob, text)
	if err != nil {
		return object.ID{}, nil, err
	}
	// The time of the value's commit is constant, so that equal values have equal commits.
	value, err := commitOf(format, ValueFile, blob, object.ID{}, time.Unix(0, 0).UTC(), "value of a cache entry")
	if err != nil {
		return object.ID{}, nil, err
	}
	entry, err := commitOf(format, InfoFile, info, value[1].ID, e.Time, "cache entry")
	if err != nil {
		return object.ID{}, nil, err
	}
	return entry[1].ID, append(append(value, blob, info), entry...), nil
}

// commitOf returns two new objects: a tree that contains one file, and a commit with this tree.
func commitOf(
	format object.Format, name string, file odb.Outgoing, parent object.ID, at time.Time, message string,
) ([]odb.Outgoing, error) {
	entries := []object.TreeEntry{{Name: name, Mode: object.ModeFile, ID: file.ID}}
	tree, err := session.Outgoing(format, object.Tree, session.EncodeTree(entries))
	if err != nil {
		return nil, err
	}
	commit, err := session.NewCommit(format, tree.ID, parent, at, message)
	return []odb.Outgoing{tree, commit}, err
}
