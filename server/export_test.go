package server

import "time"

// SetTimes sets the times for bodies that are not read and for answers. Tests call it before Serve.
func (s *Server) SetTimes(body, answer time.Duration) { s.times.body, s.times.answer = body, answer }
