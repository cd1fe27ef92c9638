// Package signal wakes goroutines through channels that hold at most one signal.
package signal

// Send puts a signal into a channel with a buffer of one. If the channel already holds a signal, Send does nothing,
// because the receiver of that signal will also see the latest state. Send does not block.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Take removes the signal from a channel, and reports whether there was one. A closed channel always has a signal. Take
// does not block.
func Take(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
