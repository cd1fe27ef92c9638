package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Refusal describes an object whose answers were invalid. It is also the error that readers of the object get.
type Refusal struct {
	Object object.ID // the refused object; zero if the Refusal is for the history
	Path   string    // path of a file with these contents; "" if it is not known
	Err    error
	Next   time.Time // time at which the object is requested again; zero: the object is not requested again automatically
}

// refusal is a Refusal together with the state of its automatic retries.
type refusal struct {
	Refusal
	class prioritize.Class
	tries int
	blob  bool // the object is a blob; examine requests blobs again automatically
}

// Error returns a message with the object, its path if it is known, and the cause.
func (r *refusal) Error() string {
	switch {
	case r.Object.IsZero():
		return fmt.Sprintf("reject history from the remote: %v", r.Err)
	case r.Path != "":
		return fmt.Sprintf("reject object %s (%s) from the remote: %v", r.Object, r.Path, r.Err)
	}
	return fmt.Sprintf("reject object %s from the remote: %v", r.Object, r.Err)
}

// Unwrap returns the cause of the refusal.
func (r *refusal) Unwrap() error { return r.Err }

// Refusals records the objects whose answers were invalid. shared.mu protects byID.
type Refusals struct {
	shared *shared
	table  *table
	byID   map[object.ID]*refusal
	// token contains a value while a request whose answer may be invalid is in flight. At most one such request may be in
	// flight, so the capacity is 1.
	token      chan struct{}
	firstRetry time.Duration // refusedFirst, or a shorter time in tests
}

// isInvalidAnswer reports whether err means that the remote has answered, but with an invalid answer.
func isInvalidAnswer(err error) bool {
	if err == nil || IsUnreachable(err) || IsFinal(err) || errors.Is(err, ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var cut AnswerError
	return errors.As(err, &cut) || transport.IsServerFault(err)
}

// isTruncated reports whether err means that an answer ended early because the connection failed.
func isTruncated(err error) bool {
	var cut AnswerError
	return errors.As(err, &cut) && IsUnreachable(err)
}

// isLocal reports whether the cause of err is on this host, not on the remote.
func isLocal(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) || errors.Is(err, syscall.ENOSPC)
}

// recordFailure counts one more invalid answer, and sets the time of the next automatic request. first is the time
// between the first failure and the next request. After refusedTries automatic requests, no time is set, unless the
// cause is on this host, such as a full disk.
func (r *refusal) recordFailure(err error, first time.Duration) {
	r.Err = err
	r.tries++
	r.Next = time.Now().Add(first << min(r.tries-1, refusedTries))
	if r.tries > refusedTries && !isLocal(err) {
		r.Next = time.Time{}
	}
}

// inTurn waits until no other request whose answer may be invalid is in flight, and then calls the function request. If
// ctx ends first, inTurn returns the error of ctx.
func (rs *Refusals) inTurn(ctx context.Context, request func() error) error {
	select {
	case rs.token <- struct{}{}:
		defer func() { <-rs.token }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return request()
}

// Forgive allows all refused objects to be requested again.
func (rs *Refusals) Forgive() {
	rs.shared.mu.Lock()
	defer rs.shared.mu.Unlock()
	rs.forgive(object.ID{})
}

// List returns the refused objects, sorted by path.
func (rs *Refusals) List() []Refusal {
	rs.shared.mu.Lock()
	defer rs.shared.mu.Unlock()
	var all []Refusal
	for _, r := range rs.byID {
		all = append(all, r.Refusal)
	}
	slices.SortFunc(all, func(a, b Refusal) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return a.Object.Compare(b.Object)
	})
	return all
}

// Settle forgets the refused objects that came in another way, such as trees that came with a commit. here reports
// whether an object is on this host; it is called without locks.
func (rs *Refusals) Settle(here func(id object.ID) bool) {
	for _, r := range rs.List() {
		if !r.Object.IsZero() && here(r.Object) {
			rs.shared.mu.Lock()
			rs.forgive(r.Object)
			rs.shared.mu.Unlock()
		}
	}
}

// IsRefused reports whether err is the refusal of an object. Such an error does not show that requests for other
// objects fail.
func IsRefused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// Refused returns the refusal of an object. It returns nil if the object is not refused, or may be requested again now.
func (rs *Refusals) Refused(id object.ID) error {
	rs.shared.mu.Lock()
	defer rs.shared.mu.Unlock()
	if r := rs.refused(id); r != nil {
		return r
	}
	return nil
}

// Request calls the function request, which fetches a tree, a commit with its trees, or, if id is zero, the history. If
// the answer is invalid, the object is refused: until the time Refusal.Next, further calls of Request return the
// refusal and do not call request.
func (rs *Refusals) Request(ctx context.Context, id object.ID, request func() error) error {
	rs.shared.mu.Lock()
	r, others := rs.refused(id), len(rs.byID) > 0
	rs.shared.mu.Unlock()
	if r != nil {
		return r
	}
	var err error
	if others { // answers for other objects were invalid, so the answer to this request may also be invalid
		err = rs.inTurn(ctx, request)
	} else {
		err = request()
	}
	rs.shared.mu.Lock()
	defer rs.shared.mu.Unlock()
	switch {
	case err == nil:
		delete(rs.byID, id)
	// If the disk is full, the history is not refused, because it can be fetched when the disk has room again.
	case isInvalidAnswer(err) && !(id.IsZero() && isLocal(err)):
		return rs.record(id, "", err)
	}
	return err
}

// forgive removes the refusal of an object. If id is zero, it removes all refusals. The caller holds shared.mu.
func (rs *Refusals) forgive(id object.ID) {
	if id.IsZero() {
		clear(rs.byID)
		return
	}
	delete(rs.byID, id)
}

// Error returns the message that readers of the object get.
func (r Refusal) Error() string { return (&refusal{Refusal: r}).Error() }

// record counts one more invalid answer for an object that may not be a blob, and returns the object's refusal. The
// caller holds shared.mu.
func (rs *Refusals) record(id object.ID, path string, err error) *refusal {
	r := rs.byID[id]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: id, Path: path}}
		rs.byID[id] = r
	}
	r.recordFailure(err, rs.firstRetry)
	return r
}

// refused returns the refusal of an object. It returns nil if the object is not refused, if its contents are on this
// host, or if the object may be requested again now. The caller holds shared.mu.
func (rs *Refusals) refused(id object.ID) *refusal {
	r := rs.byID[id]
	if r == nil || rs.table.cached(id) || !r.blob && !r.Next.IsZero() && !time.Now().Before(r.Next) {
		return nil
	}
	return r
}
