package server

import "time"

// SetTimes sets the time limits for clients that do not send a body, and for clients that do not read an answer. Tests
// call it before Serve.
func (s *Server) SetTimes(body, answer time.Duration) { s.times.body, s.times.answer = body, answer }
