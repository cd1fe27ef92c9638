package capture

import "time"

// Step is the name and the total duration of one part of making a checkpoint.
type Step struct {
	Name string
	Took time.Duration
}

// steps measures how long the consecutive parts of making a checkpoint take.
type steps struct {
	list []Step
	last time.Time
}

// done ends the current part, gives it the name, and starts the next part. It adds up the durations of parts with the
// same name.
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
