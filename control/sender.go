package control

import (
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/signal"
)

const (
	// minimum time between two progress messages; people cannot read a line that changes faster
	progressPause  = 40 * time.Millisecond
	maxUnsentSteps = 64 // maximum number of steps that wait to be sent
)

// sender writes the messages of the answer to one request. Progress messages never delay the request: if the caller
// reads slowly, a newer step replaces an older step of the same phase that was not sent yet.
type sender struct {
	conn    *net.UnixConn  // connection to the caller
	version int            // version of the messages
	done    sync.WaitGroup // waits for the goroutine that the method start has started
	quit    chan struct{}  // closed by the method stop
	wake    chan struct{}  // holds one token if there are steps to send

	mu     sync.Mutex // protects unsent
	unsent []Progress // steps that were not sent yet: at most one step for each phase, and the steps with messages
}

// start starts the goroutine that sends the progress messages. The caller must call stop.
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

// stop sends the remaining steps and returns after the goroutine of start has ended.
func (s *sender) stop() {
	close(s.quit)
	s.done.Wait()
}

// progress queues the step p for sending. It never blocks: if the last queued step belongs to the same phase, or if
// maxUnsentSteps steps are queued, p replaces the last queued step.
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
	// If wake holds a token already, the flush for that token also sends this step.
	signal.Send(s.wake)
}

// flush sends the queued steps.
func (s *sender) flush() {
	s.mu.Lock()
	steps := s.unsent
	s.unsent = nil
	s.mu.Unlock()
	for i := range steps {
		if s.send(message{Progress: &steps[i]}) != nil {
			return // the goroutine that reads from the connection notices that the caller has left
		}
	}
}

// result sends the last message, which contains the result v. ignored contains the names of the fields in the request
// that this server does not know.
func (s *sender) result(v any, ignored []string) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	return s.send(message{Result: raw, Ignored: ignored})
}

// send sends a message. It returns an error if the caller has not read the message within requestTime.
func (s *sender) send(m message) error { return s.sendBy(m, time.Now().Add(requestTime)) }

// sendBy sends a message like send, with a deadline for the caller to read it. The zero time means that there is no
// deadline.
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
