package supervisor

import "time"

// failures counts consecutive workers that have failed. The counts determine the pause before the next worker is started, the
// moment at which the supervisor gives up, and the time limits of a worker.
type failures struct {
	unserved int // number of consecutive workers that ended before they served
	hasty    int // number of consecutive workers that crashed within hastyTime after they had begun to serve
	hung     int // number of consecutive workers that the watchdog has killed
}

// countHaste updates the count hasty for the worker w, which has served and ended: it counts w if w has crashed soon after it
// began to serve, and resets the count if w has crashed later.
func (f *failures) countHaste(w *worker) {
	switch {
	case !w.crashed():
	case w.endedAt.Sub(w.readyAt) < hastyTime:
		f.hasty++
	default:
		f.hasty = 0
	}
}

// pause returns the pause before the next worker is started; 0 means that the next worker is started at once. The pause grows
// with each failure.
func (f *failures) pause() time.Duration {
	// The first hastyFree crashes in a row cause no pause, because the users of the mounts wait during a pause.
	n := max(f.unserved, f.hasty-hastyFree)
	if n <= 0 {
		return 0
	}
	return pauses.Limit(n)
}

// tooMany reports whether so many workers have failed that the mounts must be detached.
func (f *failures) tooMany() bool { return f.unserved >= giveUpAfter || f.hasty >= hastyLimit }

// most returns the number of failures to be shown to the user.
func (f *failures) most() int { return max(f.unserved, f.hasty) }

// patience returns the number of times that the time limits of a worker are doubled.
func (f *failures) patience() int { return min(f.hung, mostPatience) }
