// Package places limits how many requests do something at the same time: all of them, and those of one namespace. Others wait, so one
// namespace cannot take the places of all.
package places

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrBusy means that no place became free in time.
var ErrBusy = errors.New("too many requests do this at the same time")

// Places is a semaphore with a part for each namespace. It may be used from any goroutine.
//
// Locks: mu is a leaf.
type Places struct {
	most, mostOf int
	patience     time.Duration

	mu    sync.Mutex
	used  int
	of    map[string]int // used places by namespace
	freed chan struct{}  // closed when a place becomes free, and then replaced
}

// New returns a semaphore with places for the number most of requests, of which those of one namespace get mostOf. A request waits for
// a place for up to the duration patience.
func New(most, mostOf int, patience time.Duration) *Places {
	return &Places{most: most, mostOf: mostOf, patience: patience, of: map[string]int{}, freed: make(chan struct{})}
}

// Enter takes a place. The caller calls leave once. Enter returns ErrBusy if no place became free in time.
func (p *Places) Enter(ctx context.Context, namespace string) (leave func(), err error) {
	late := time.NewTimer(p.patience)
	defer late.Stop()
	for {
		p.mu.Lock()
		if p.used < p.most && p.of[namespace] < p.mostOf {
			p.used++
			p.of[namespace]++
			p.mu.Unlock()
			return func() { p.leave(namespace) }, nil
		}
		freed := p.freed
		p.mu.Unlock()
		select {
		case <-freed:
		case <-late.C:
			return nil, ErrBusy
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Places) leave(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	if p.of[namespace]--; p.of[namespace] == 0 {
		delete(p.of, namespace)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}
