package api

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// places limits how many requests do something at the same time: all of them, and those of one namespace. Others wait.
//
// Locks: mu is a leaf.
type places struct {
	most, mostOf int

	mu    sync.Mutex
	used  int
	of    map[string]int // used places by namespace
	freed chan struct{}  // closed when a place becomes free, and then replaced
}

func newPlaces(most, mostOf int) *places {
	return &places{most: most, mostOf: mostOf, of: map[string]int{}, freed: make(chan struct{})}
}

// enter takes a place, for which it waits for up to answerTime. The caller calls leave once.
func (p *places) enter(ctx context.Context, namespace string) (leave func(), err error) {
	late := time.NewTimer(answerTime)
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
			return nil, &Fault{http.StatusServiceUnavailable, codeUpstream, "Too many large files are being read", ""}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *places) leave(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	if p.of[namespace]--; p.of[namespace] == 0 {
		delete(p.of, namespace)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}
