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

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// An invalid answer (a broken pack, an object over the size limit, or one for which the disk has no room) is the
// fault of one of the objects that were requested. To find this object, halves of the batch are requested one after
// the other, then halves of an invalid half, and so on until the object is alone. Then the object is refused: reads
// of it fail at once with the cause. It is requested again after refusedFirst, then after twice as long each time, up
// to refusedTries times.
const (
	singleTries  = 2 // requests for a single object before it is refused
	refusedFirst = time.Second
	refusedTries = 6
)

// Refusal is an object whose answers were invalid, and the error that its readers see.
type Refusal struct {
	Object object.ID // zero: history
	Path   string    // "" if it is not known
	Err    error
	Next   time.Time // when the object is requested again; zero: not automatically
}

// refusal is a Refusal with the state of its retries.
type refusal struct {
	Refusal
	class prioritize.Class
	tries int
	blob  bool // the object is a blob, which examine requests again automatically
}

// Error names the object, its path if it is known, and the cause.
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

// refusals is the state of refused objects and of the search for them. Pipeline.mu guards it.
type refusals struct {
	byID       map[object.ID]*refusal
	parts      []part        // parts that are to be requested, one after the other
	examining  bool          // the goroutine examine is running
	token      chan struct{} // capacity 1: requests whose answers may be invalid are sent one at a time
	firstRetry time.Duration // refusedFirst; shorter in tests
}

// part is a half, quarter and so on of the objects of an invalid answer.
type part struct {
	wants []prioritize.Want
	tries int // number of requests so far, if the part is a single object
}

// isInvalidAnswer reports whether err means that an answer arrived but was invalid.
func isInvalidAnswer(err error) bool {
	if err == nil || IsUnreachable(err) || IsFinal(err) || errors.Is(err, ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var cut AnswerError
	return errors.As(err, &cut) || transport.IsServerFault(err)
}

// isTruncated reports whether an answer ended early because the connection failed.
func isTruncated(err error) bool {
	var cut AnswerError
	return errors.As(err, &cut) && IsUnreachable(err)
}

// isLocal reports whether this host, not the remote, is the cause of err.
func isLocal(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) || errors.Is(err, syscall.ENOSPC)
}

// bisect schedules the wants of an invalid answer for requests in smaller parts, and starts examine if needed. The
// caller holds mu.
func (p *Pipeline) bisect(wants []prioritize.Want, err error) {
	if len(wants) == 0 {
		return
	}
	p.split(part{wants: wants}, err)
	if !p.refusals.examining {
		p.refusals.examining = true
		p.wg.Go(p.examine)
	}
}

// split appends the halves of a part to the list of parts. Objects that readers wait for become the first half. A
// single object is requested alone, or refused after singleTries. The caller holds mu.
func (p *Pipeline) split(of part, err error) {
	r := &p.refusals
	if len(of.wants) == 1 {
		w := of.wants[0]
		if of.tries++; of.tries <= singleTries {
			r.parts = append(r.parts, part{p.holdSuspects(of.wants), of.tries})
			return
		}
		p.refuse(w, err)
		return
	}
	var waited, rest []prioritize.Want
	for _, w := range of.wants {
		// Wants that readers wait for are separated from the rest, so that an invalid object in the rest does not
		// delay them.
		if f := p.pending[w.ID]; f != nil && f.waiters > 0 {
			waited = append(waited, w)
		} else {
			rest = append(rest, w)
		}
	}
	if len(waited) == 0 || len(rest) == 0 {
		all := of.wants
		waited, rest = all[:len(all)/2], all[len(all)/2:]
	}
	r.parts = append([]part{{wants: p.holdSuspects(waited)}}, append(r.parts, part{wants: p.holdSuspects(rest)})...)
}

// holdSuspects removes wants from the queue and marks them as part of a batch, so that no sender sends them. It
// returns wants. The caller holds mu.
func (p *Pipeline) holdSuspects(wants []prioritize.Want) []prioritize.Want {
	held := &Batch{suspect: true, background: true}
	for _, w := range wants {
		if f := p.pending[w.ID]; f != nil {
			p.queue.Drop(w.ID)
			f.inBatch = held
		}
	}
	return wants
}

// refuse records that an object is refused, and finishes its want with the refusal. The caller holds mu.
func (p *Pipeline) refuse(w prioritize.Want, err error) {
	r := p.refusals.byID[w.ID]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: w.ID, Path: w.Path}, class: w.Class, blob: true}
	}
	r.recordFailure(err, p.refusals.firstRetry)
	p.refusals.byID[w.ID] = r
	p.log.Warn("reject answer of the remote", zap.Stringer("object", w.ID), zap.String("path", w.Path), zap.Time("again", r.Next),
		zap.Error(err))
	if f := p.pending[w.ID]; f != nil {
		f.inBatch = nil
		p.finish(w.ID, f, nil, r)
	}
}

// recordFailure counts one more invalid answer and sets the time of the next request. Errors of this host, such as a
// full disk, never stop the automatic requests.
func (r *refusal) recordFailure(err error, first time.Duration) {
	r.Err = err
	r.tries++
	r.Next = time.Now().Add(first << min(r.tries-1, refusedTries))
	if r.tries > refusedTries && !isLocal(err) {
		r.Next = time.Time{}
	}
}

// examine requests the parts one after the other, and refused objects when they are due, until none of either is
// left. It runs in a goroutine of its own.
func (p *Pipeline) examine() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for pause := p.refusals.firstRetry / 10; ; {
		b, tries, until := p.nextSuspect()
		switch {
		case b == nil && until.IsZero():
			return
		case b == nil:
			select {
			case <-time.After(min(time.Until(until), maxReaderProbe)):
			case <-ctx.Done():
				return
			}
			continue
		}
		probe, err := p.admit(ctx)
		if err != nil {
			p.mu.Lock()
			p.refusals.examining = false
			p.mu.Unlock()
			return
		}
		b.probe = probe
		err = p.inTurn(ctx, func() error { return p.send(ctx, b, p.Arrived) })
		if p.examined(b, tries, err) {
			pause = p.refusals.firstRetry / 10
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, p.refusals.firstRetry)
	}
}

// inTurn waits until no other request whose answer may be invalid is in flight, and then calls request.
func (p *Pipeline) inTurn(ctx context.Context, request func() error) error {
	select {
	case p.refusals.token <- struct{}{}:
		defer func() { <-p.refusals.token }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return request()
}

// nextSuspect returns the next batch to request. tries is the number of requests for the part so far. If b is nil, no
// batch is due before until, or, if until is zero, none is left and examine must end.
func (p *Pipeline) nextSuspect() (b *Batch, tries int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.refusals
	for len(r.parts) > 0 && !p.closed {
		next := r.parts[0]
		r.parts = r.parts[1:]
		b := &Batch{suspect: true, background: true}
		for _, w := range next.wants {
			f := p.pending[w.ID]
			switch {
			case f == nil || f.inBatch != nil && !f.inBatch.suspect:
			case f.waiters == 0 && !f.prefetch:
				p.finish(w.ID, f, nil, context.Canceled)
			default:
				f.inBatch = b
				b.Wants = append(b.Wants, w)
			}
		}
		if len(b.Wants) > 0 {
			return b, next.tries, time.Time{}
		}
	}
	var due *refusal
	for _, of := range r.byID {
		if of.blob && !of.Next.IsZero() && (due == nil || of.Next.Before(due.Next)) {
			due = of
		}
	}
	switch {
	case due == nil || p.closed:
		r.examining = false
		return nil, 0, time.Time{}
	case time.Now().Before(due.Next):
		return nil, 0, due.Next
	case p.cached(due.Object):
		// The object arrived with another request.
		p.forgive(due.Object)
		return nil, 0, due.Next
	}
	w := prioritize.Want{ID: due.Object, Path: due.Path, Class: due.class}
	return &Batch{suspect: true, background: true, Wants: []prioritize.Want{w}}, singleTries, time.Time{}
}

// examined records the result of a batch of suspects. It returns false if the answer was invalid.
func (p *Pipeline) examined(b *Batch, tries int, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var notOurs transport.NotOurRef
	invalid := (isInvalidAnswer(err) || isTruncated(err)) && !errors.As(err, &notOurs)
	switch {
	case err == nil:
		p.succeededLocked()
	case invalid, !IsUnreachable(err):
		p.answeredLocked()
	default:
		p.failedLocked(err, p.RetryOf(b.Wants[0]), b.probe)
	}
	var left []prioritize.Want
	for _, w := range b.Wants {
		r, f := p.refusals.byID[w.ID], p.pending[w.ID]
		switch {
		case f != nil && f.inBatch == b: // one of a part
			f.inBatch = nil
			if invalid {
				left = append(left, w)
			} else {
				p.queue.Push(w) // senders handle any other failure
			}
		case r == nil:
		case invalid:
			p.refuse(w, err)
		case IsUnreachable(err):
			r.Next = time.Now().Add(refusedFirst)
		default: // the remote was repaired: the object arrived, or was removed there; so all others are tried again
			p.forgive(object.ID{})
		}
	}
	if len(left) > 0 {
		p.split(part{left, tries}, err)
	}
	p.wake.Broadcast()
	return !invalid
}

// Forgive makes refused objects eligible for requests again.
func (p *Pipeline) Forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgive(object.ID{})
}

// Refusals returns the refused objects in the order of their paths.
func (p *Pipeline) Refusals() []Refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Refusal
	for _, r := range p.refusals.byID {
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

// IsRefused reports whether err is the refusal of an object. Such an error does not mean that the remote as a whole
// fails.
func IsRefused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// Refused returns the refusal of an object, or nil if the object may be requested.
func (p *Pipeline) Refused(id object.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.refusedLocked(id); r != nil {
		return r
	}
	return nil
}

// RequestObject runs request, which fetches something other than contents: a tree, a commit with its trees, or, with
// the zero id, history. After an invalid answer it returns the refusal without a request until the time of the next
// attempt.
func (p *Pipeline) RequestObject(ctx context.Context, id object.ID, request func() error) error {
	p.mu.Lock()
	r, others := p.refusedLocked(id), len(p.refusals.byID) > 0
	p.mu.Unlock()
	if r != nil {
		return r
	}
	var err error
	if others { // this answer may be invalid too
		err = p.inTurn(ctx, request)
	} else {
		err = request()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		delete(p.refusals.byID, id)
	case isInvalidAnswer(err) && !(id.IsZero() && isLocal(err)): // history waits until the disk has room again
		return p.recordRefusal(id, "", err)
	}
	return err
}

// forgive removes the refusal of an object, or of all objects if id is zero. The caller holds mu.
func (p *Pipeline) forgive(id object.ID) {
	if id.IsZero() {
		clear(p.refusals.byID)
		return
	}
	delete(p.refusals.byID, id)
}

// Error returns the text of the error that readers of the object get.
func (r Refusal) Error() string { return (&refusal{Refusal: r}).Error() }

// recordRefusal counts one more invalid answer for an object that may not be a blob, and returns its refusal. The
// caller holds mu.
func (p *Pipeline) recordRefusal(id object.ID, path string, err error) *refusal {
	r := p.refusals.byID[id]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: id, Path: path}}
		p.refusals.byID[id] = r
	}
	r.recordFailure(err, p.refusals.firstRetry)
	return r
}

// refusedLocked returns the refusal of an object, or nil if the object may be requested now. The caller holds mu.
func (p *Pipeline) refusedLocked(id object.ID) *refusal {
	r := p.refusals.byID[id]
	if r == nil || p.cached(id) || !r.blob && !r.Next.IsZero() && !time.Now().Before(r.Next) {
		return nil
	}
	return r
}
