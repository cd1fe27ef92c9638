package control

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"sync"
	"time"
)

const (
	progressPause  = 40 * time.Millisecond // between progress messages: as fast as a person can read a line change
	maxUnsentSteps = 64
)

// sender writes the messages of one reply. Progress never delays the work: while the caller is slow
// to read, a newer step of a phase replaces the older one.
type sender struct {
	conn    *net.UnixConn
	version int // of the messages
	done    sync.WaitGroup
	quit    chan struct{}
	wake    chan struct{} // capacity 1

	mu     sync.Mutex
	unsent []Progress // at most one of a phase, and those with messages
}

// start starts the goroutine that writes progress. stop ends it.
func (s *sender) start() {
	s.quit, s.wake = make(chan struct{}), make(chan struct{}, 1)
	s.done.Go(func() {
		for {
			select {
			case <-s.wake:
			case <-s.quit:
				s.flush()
				return
			}
			s.flush()
			select {
			case <-time.After(progressPause):
			case <-s.quit:
			}
		}
	})
}

// stop writes the remaining messages and returns when its goroutine has ended.
func (s *sender) stop() {
	close(s.quit)
	s.done.Wait()
}

// progress queues a step. It never blocks: steps of one phase replace each other, and so do steps
// beyond maxUnsentSteps.
func (s *sender) progress(p Progress) {
	s.mu.Lock()
	last := len(s.unsent) - 1
	switch {
	case last >= 0 && s.unsent[last].Phase == p.Phase && s.unsent[last].Message == "":
		s.unsent[last] = p
	case last+1 < maxUnsentSteps:
		s.unsent = append(s.unsent, p)
	default:
		s.unsent[last] = p
	}
	s.mu.Unlock()
	// wake holds one token: a flush that is due writes this step too.
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush writes the queued steps.
func (s *sender) flush() {
	s.mu.Lock()
	steps := s.unsent
	s.unsent = nil
	s.mu.Unlock()
	for i := range steps {
		if s.send(message{Progress: &steps[i]}) != nil {
			return // the reader of the connection notices that the caller has left
		}
	}
}

// result writes the final message with the result. ignored names the fields of the request that
// this server does not know.
func (s *sender) result(v any, ignored []string) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	// Clients of an older protocol version expect the older names of fields.
	if s.version < renamed && v != nil {
		raw = withNames5(raw, reflect.TypeOf(v))
	}
	return s.send(message{Result: raw, Ignored: ignored})
}

// send writes a message, which the caller must read within requestTime.
func (s *sender) send(m message) error { return s.sendBy(m, time.Now().Add(requestTime)) }

// sendBy is send with another time for the message to be taken; the zero time is forever.
func (s *sender) sendBy(m message, deadline time.Time) error {
	m.Version = s.version
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	s.conn.SetWriteDeadline(deadline)
	if _, err := s.conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}
