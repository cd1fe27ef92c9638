package fetch

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

// An answer that came and cannot be used (a broken pack, an object over the limit, one for which there is no room) is the
// fault of one of the objects that were asked for. Those are asked for in ever smaller parts, one request at a time, until
// the object is alone. It is refused then: reads of it fail at once with what was wrong, and the remote is asked for it again
// after refusedFirst, and after twice as long each time, refusedTries times in all.
const (
	aloneTries   = 2 // of an object by itself, before it is refused
	refusedFirst = time.Second
	refusedTries = 6
)

// Refusal is an object that the remote's answers for could not be used.
type Refusal struct {
	Object object.ID // zero: history
	Path   string    // "" if it is not known
	Err    error
	Next   time.Time // when the remote is asked again; zero: no more by itself
}

// refusal is a Refusal, and the error that readers of the object get.
type refusal struct {
	Refusal
	class prioritize.Class
	tries int
	blob  bool // asked for again without a reader
}

func (r *refusal) Error() string {
	switch {
	case r.Object.IsZero():
		return fmt.Sprintf("refused: history: %v", r.Err)
	case r.Path != "":
		return fmt.Sprintf("refused: object %s (%s): %v", r.Object, r.Path, r.Err)
	}
	return fmt.Sprintf("refused: object %s: %v", r.Object, r.Err)
}

func (r *refusal) Unwrap() error { return r.Err }

// refusals is guarded by pipeline.mu.
type refusals struct {
	of        map[object.ID]*refusal
	parts     []part // to be asked for, one after the other
	examining bool
	turn      chan struct{} // one token: whose answer may be unusable is asked for by one at a time
	first     time.Duration // refusedFirst
}

// part is some of the objects of a batch that could not be used.
type part struct {
	wants []prioritize.Want
	tries int // of a single object
}

// unusable says whether an answer came and could not be used.
func unusable(err error) bool {
	if err == nil || Away(err) || final(err) || errors.Is(err, ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var cut cutAnswer
	return errors.As(err, &cut) || transport.IsServerFault(err)
}

// cutOff says whether an answer broke off.
func cutOff(err error) bool {
	var cut cutAnswer
	return errors.As(err, &cut) && Away(err)
}

// isLocal says whether it is this host that failed.
func isLocal(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) || errors.Is(err, syscall.ENOSPC)
}

// suspect has wants looked at whose answer could not be used. It needs mu.
func (p *pipeline) suspect(wants []prioritize.Want, err error) {
	if len(wants) == 0 {
		return
	}
	p.split(part{wants: wants}, err)
	if !p.refusals.examining {
		p.refusals.examining = true
		p.wg.Go(p.examine)
	}
}

// split puts the halves of a part in line; those that readers wait for come first. A single object is asked for by itself,
// or is refused. It needs mu.
func (p *pipeline) split(of part, err error) {
	r := &p.refusals
	if len(of.wants) == 1 {
		w := of.wants[0]
		if of.tries++; of.tries <= aloneTries {
			r.parts = append(r.parts, part{p.holdSuspects(of.wants), of.tries})
			return
		}
		p.refuse(w, err)
		return
	}
	var waited, rest []prioritize.Want
	for _, w := range of.wants {
		if f := p.flights[w.ID]; f != nil && f.waiters > 0 {
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

// holdSuspects keeps lanes from sending wants. It needs mu.
func (p *pipeline) holdSuspects(wants []prioritize.Want) []prioritize.Want {
	held := &batch{suspect: true, background: true}
	for _, w := range wants {
		if f := p.flights[w.ID]; f != nil {
			p.queue.Drop(w.ID)
			f.batch = held
		}
	}
	return wants
}

// refuse ends the flight of an object, and puts it on record. It needs mu.
func (p *pipeline) refuse(w prioritize.Want, err error) {
	r := p.refusals.of[w.ID]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: w.ID, Path: w.Path}, class: w.Class, blob: true}
	}
	r.again(err, p.refusals.first)
	p.refusals.of[w.ID] = r
	p.log.Warn("refused an answer", zap.Stringer("object", w.ID), zap.String("path", w.Path), zap.Time("again", r.Next), zap.Error(err))
	if f := p.flights[w.ID]; f != nil {
		f.batch = nil
		p.land(w.ID, f, nil, r)
	}
}

// again records one more refused answer. What is this host's fault is no reason to give up.
func (r *refusal) again(err error, first time.Duration) {
	r.Err = err
	r.tries++
	r.Next = time.Now().Add(first << min(r.tries-1, refusedTries))
	if r.tries > refusedTries && !isLocal(err) {
		r.Next = time.Time{}
	}
}

// examine sends the parts one after the other, and later what was refused, until nothing is left to be sent.
func (p *pipeline) examine() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for pause := p.refusals.first / 10; ; {
		b, tries, until := p.nextSuspect()
		switch {
		case b == nil && until.IsZero():
			return
		case b == nil:
			select {
			case <-time.After(min(time.Until(until), readerPause)):
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
		err = p.inTurn(ctx, func() error { return p.send(ctx, b, p.arrived) })
		if p.examined(b, tries, err) {
			pause = p.refusals.first / 10
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, p.refusals.first)
	}
}

// inTurn sends a request when no other whose answer may be unusable is under way.
func (p *pipeline) inTurn(ctx context.Context, request func() error) error {
	select {
	case p.refusals.turn <- struct{}{}:
		defer func() { <-p.refusals.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return request()
}

// nextSuspect takes what is to be sent next; nil: nothing before until, or, if that is zero, nothing at all: the examiner
// must end then.
func (p *pipeline) nextSuspect() (b *batch, tries int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.refusals
	for len(r.parts) > 0 && !p.closed {
		next := r.parts[0]
		r.parts = r.parts[1:]
		b := &batch{suspect: true, background: true}
		for _, w := range next.wants {
			f := p.flights[w.ID]
			switch {
			case f == nil || f.batch != nil && !f.batch.suspect:
			case f.waiters == 0 && !f.keep:
				p.land(w.ID, f, nil, context.Canceled)
			default:
				f.batch = b
				b.wants = append(b.wants, w)
			}
		}
		if len(b.wants) > 0 {
			return b, next.tries, time.Time{}
		}
	}
	var due *refusal
	for _, of := range r.of {
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
	case p.here(due.Object):
		p.forgive(due.Object)
		return nil, 0, due.Next
	}
	w := prioritize.Want{ID: due.Object, Path: due.Path, Class: due.class}
	return &batch{suspect: true, background: true, wants: []prioritize.Want{w}}, aloneTries, time.Time{}
}

// examined settles what was sent; true: its answer could be used.
func (p *pipeline) examined(b *batch, tries int, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var notOurs transport.NotOurRef
	spoilt := (unusable(err) || cutOff(err)) && !errors.As(err, &notOurs)
	switch {
	case err == nil:
		p.succeededLocked()
	case spoilt, !Away(err):
		p.answeredLocked()
	default:
		p.failedLocked(err, p.askAgain(b.wants[0]), b.probe)
	}
	var left []prioritize.Want
	for _, w := range b.wants {
		r, f := p.refusals.of[w.ID], p.flights[w.ID]
		switch {
		case f != nil && f.batch == b: // a part
			f.batch = nil
			if spoilt {
				left = append(left, w)
			} else {
				p.queue.Push(w) // lanes know what to do with any other failure
			}
		case r == nil:
		case spoilt:
			p.refuse(w, err)
		case Away(err):
			r.Next = time.Now().Add(refusedFirst)
		default: // it came, or is gone: the remote was mended, and may give what else was refused
			p.forgive(object.ID{})
		}
	}
	if len(left) > 0 {
		p.split(part{left, tries}, err)
	}
	p.wake.Broadcast()
	return !spoilt
}

// forgive ends the refusal of an object, or of all if id is zero. It needs mu.
func (p *pipeline) forgive(id object.ID) {
	if id.IsZero() {
		clear(p.refusals.of)
		return
	}
	delete(p.refusals.of, id)
}

// Forgive has the remote asked again for objects whose answers could not be used.
func (s *Store) Forgive() {
	s.blobPipe.mu.Lock()
	defer s.blobPipe.mu.Unlock()
	s.blobPipe.forgive(object.ID{})
}

// Refusals lists the objects that the remote's answers for could not be used, in the order of their paths.
func (s *Store) Refusals() []Refusal {
	s.blobPipe.mu.Lock()
	defer s.blobPipe.mu.Unlock()
	var all []Refusal
	for _, r := range s.blobPipe.refusals.of {
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

// Error is what readers of the object get.
func (r Refusal) Error() string { return (&refusal{Refusal: r}).Error() }

// refusing sends a request for one object that is no content: a tree, a commit with its trees, or, with the zero id, history.
// After an answer that could not be used it fails at once until it is time to ask again.
func (s *Store) refusing(ctx context.Context, id object.ID, request func() error) error {
	p := s.blobPipe
	p.mu.Lock()
	r, others := p.refused(id), len(p.refusals.of) > 0
	p.mu.Unlock()
	if r != nil {
		return r
	}
	var err error
	if others { // this answer may be another such
		err = p.inTurn(ctx, request)
	} else {
		err = request()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		delete(p.refusals.of, id)
	case unusable(err) && !(id.IsZero() && isLocal(err)): // history waits for room
		return p.record(id, "", err)
	}
	return err
}

// record puts one more refused answer for what is no content on record. It needs mu.
func (p *pipeline) record(id object.ID, path string, err error) *refusal {
	r := p.refusals.of[id]
	if r == nil {
		r = &refusal{Refusal: Refusal{Object: id, Path: path}}
		p.refusals.of[id] = r
	}
	r.again(err, p.refusals.first)
	return r
}

// refused is why an object is not asked for now; nil if it may be. It needs mu.
func (p *pipeline) refused(id object.ID) *refusal {
	r := p.refusals.of[id]
	if r == nil || p.here(id) || !r.blob && !r.Next.IsZero() && !time.Now().Before(r.Next) {
		return nil
	}
	return r
}
