package pipeline

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/prioritize"
)

// An answer is invalid if it contains a broken pack, an object over the size limit, or an object for which the disk has
// no room. The cause is one of the objects that were requested. To find this object, the batch is divided: its halves
// are requested one after the other, then the halves of an invalid half, and so on, until the object is alone. Then the
// object is refused, which means that reads of it fail at once with the cause. The object is requested again up to
// refusedTries times: first after the duration refusedFirst, then each time after twice the previous duration.
const (
	singleTries  = 2 // number of requests for a single object before it is refused
	refusedFirst = time.Second
	refusedTries = 6
)

// part is a half, a quarter or a smaller part of the objects of a batch whose answer was invalid.
type part struct {
	wants []prioritize.Want
	tries int // number of requests so far, if the part is a single object
}

// examiner searches for the objects that made answers invalid, and requests refused blobs again at the time
// Refusal.Next. shared.mu protects parts and examining.
type examiner struct {
	shared   *shared
	table    *table
	health   *Health
	refusals *Refusals
	send     func(ctx context.Context, b *Batch) error // sends a batch and reports each blob that arrives to the pipeline
	// Pipeline.RetryOf, which returns a function that requests a want again
	retryOf func(w prioritize.Want) func()
	log     *zap.Logger

	parts     []part // parts that examine requests, one after the other
	examining bool   // true while the goroutine examine runs
}

// bisect schedules requests for the given wants in smaller parts, because the answer to their batch was invalid with
// the error err. It starts the goroutine examine unless this goroutine is running. The caller holds shared.mu.
func (e *examiner) bisect(wants []prioritize.Want, err error) {
	if len(wants) == 0 {
		return
	}
	e.split(part{wants: wants}, err)
	if !e.examining {
		e.examining = true
		e.shared.wg.Go(e.examine)
	}
}

// split divides the part in the parameter of, because the answer to its request was invalid with the error err, and
// adds the halves to the list of parts. If readers wait for some of the objects, these objects form the first half. A
// part that is a single object is requested again; after singleTries requests it is refused. The caller holds
// shared.mu.
func (e *examiner) split(of part, err error) {
	if len(of.wants) == 1 {
		w := of.wants[0]
		if of.tries++; of.tries <= singleTries {
			e.parts = append(e.parts, part{e.table.hold(of.wants), of.tries})
			return
		}
		e.refuse(w, err)
		return
	}
	var waited, rest []prioritize.Want
	for _, w := range of.wants {
		// Wants for which readers wait are separated from the others, so that an invalid object among the others does not
		// delay the readers.
		if f := e.table.pending[w.ID]; f != nil && f.waiters > 0 {
			waited = append(waited, w)
		} else {
			rest = append(rest, w)
		}
	}
	if len(waited) == 0 || len(rest) == 0 {
		all := of.wants
		waited, rest = all[:len(all)/2], all[len(all)/2:]
	}
	e.parts = append([]part{{wants: e.table.hold(waited)}}, append(e.parts, part{wants: e.table.hold(rest)})...)
}

// refuse records that the object of want w is refused because of err, and ends the wait of its readers with the
// refusal. The caller holds shared.mu.
func (e *examiner) refuse(w prioritize.Want, err error) {
	r := e.refusals.byID[w.ID]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: w.ID, Path: w.Path}, class: w.Class, blob: true}
	}
	r.recordFailure(err, e.refusals.firstRetry)
	e.refusals.byID[w.ID] = r
	e.log.Warn("reject answer of the remote", zap.Stringer("object", w.ID), zap.String("path", w.Path),
		zap.Time("again", r.Next),
		zap.Error(err))
	if f := e.table.pending[w.ID]; f != nil {
		f.inBatch = nil
		e.table.finish(w.ID, f, nil, r)
	}
}

// examine requests the parts one after the other, and each refused object at its time Refusal.Next, until no parts and
// no refused objects are left to request. It runs in a separate goroutine.
func (e *examiner) examine() {
	ctx, cancel := e.shared.context()
	defer cancel()
	for pause := e.refusals.firstRetry / 10; ; {
		b, tries, until := e.nextSuspect()
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
		probe, err := e.health.admit(ctx)
		if err != nil {
			e.shared.mu.Lock()
			e.examining = false
			e.shared.mu.Unlock()
			return
		}
		b.probe = probe
		err = e.refusals.inTurn(ctx, func() error { return e.send(ctx, b) })
		if e.examined(b, tries, err) {
			pause = e.refusals.firstRetry / 10
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, e.refusals.firstRetry)
	}
}

// nextSuspect returns the next batch that examine is to request, and in tries the number of earlier requests for the
// same objects. If b is nil and until is not zero, examine must wait until the time until. If b is nil and until is
// zero, nothing is left to request, and examine must end.
func (e *examiner) nextSuspect() (b *Batch, tries int, until time.Time) {
	e.shared.mu.Lock()
	defer e.shared.mu.Unlock()
	for len(e.parts) > 0 && !e.shared.closed {
		next := e.parts[0]
		e.parts = e.parts[1:]
		b := &Batch{suspect: true, background: true}
		for _, w := range next.wants {
			f := e.table.pending[w.ID]
			switch {
			case f == nil || f.inBatch != nil && !f.inBatch.suspect:
			case f.waiters == 0 && !f.prefetch:
				e.table.finish(w.ID, f, nil, context.Canceled)
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
	for _, of := range e.refusals.byID {
		if of.blob && !of.Next.IsZero() && (due == nil || of.Next.Before(due.Next)) {
			due = of
		}
	}
	switch {
	case due == nil || e.shared.closed:
		e.examining = false
		return nil, 0, time.Time{}
	case time.Now().Before(due.Next):
		return nil, 0, due.Next
	case e.table.cached(due.Object):
		// The object has arrived with another request in the meantime.
		e.refusals.forgive(due.Object)
		return nil, 0, due.Next
	}
	w := prioritize.Want{ID: due.Object, Path: due.Path, Class: due.class}
	return &Batch{suspect: true, background: true, Wants: []prioritize.Want{w}}, singleTries, time.Time{}
}

// examined records the result of a batch that examine has sent. It returns false if the answer was invalid.
func (e *examiner) examined(b *Batch, tries int, err error) bool {
	e.shared.mu.Lock()
	defer e.shared.mu.Unlock()
	var notOurs transport.NotOurRef
	invalid := (isInvalidAnswer(err) || isTruncated(err)) && !errors.As(err, &notOurs)
	switch {
	case err == nil:
		e.health.succeeded()
	case invalid, !IsUnreachable(err):
		e.health.answered()
	default:
		e.health.failed(err, e.retryOf(b.Wants[0]), b.probe)
	}
	var left []prioritize.Want
	for _, w := range b.Wants {
		r, f := e.refusals.byID[w.ID], e.table.pending[w.ID]
		switch {
		case f != nil && f.inBatch == b: // the want belongs to a part, not to a refused object that is tried again
			f.inBatch = nil
			if invalid {
				left = append(left, w)
			} else {
				// a sender requests the want again, because senders handle failures other than invalid answers
				e.table.queue.Push(w)
			}
		case r == nil:
		case invalid:
			e.refuse(w, err)
		case IsUnreachable(err):
			r.Next = time.Now().Add(refusedFirst)
		// The answer for a refused object was valid: the remote has sent the object, or has reported that it lacks the
		// object. The remote was probably repaired, so all other refused objects are tried again.
		default:
			e.refusals.forgive(object.ID{})
		}
	}
	if len(left) > 0 {
		e.split(part{left, tries}, err)
	}
	e.shared.wake.Broadcast()
	return !invalid
}
