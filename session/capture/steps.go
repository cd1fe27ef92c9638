package capture

import "time"

// Step is a part of the making of a checkpoint, and how long it took in all.
type Step struct {
	Name string
	Took time.Duration
}

// steps measures parts that follow each other.
type steps struct {
	list []Step
	last time.Time
}

// done ends a part, which may come again.
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
