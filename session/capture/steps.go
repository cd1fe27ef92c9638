package capture

import "time"

// Step is one part of the making of a checkpoint, with its total duration.
type Step struct {
	Name string
	Took time.Duration
}

// steps measures consecutive parts.
type steps struct {
	list []Step
	last time.Time
}

// done ends the current part. A name may occur several times; the durations are added.
func (s *steps) done(name string) {
	now := time.Now()
	took := now.Sub(s.last)
	s.last = now
	for i := range s.list {
		if s.list[i].Name == name {
			s.list[i].Took += took
			return
		}
	}
	s.list = append(s.list, Step{name, took})
}
