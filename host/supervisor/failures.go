package supervisor

import "time"

// failures counts workers that have failed one after the other. The counts determine the pause before the next worker
// is started, whether the supervisor gives up, and the time limits of a worker.
type failures struct {
	unserved int // number of consecutive workers that ended before they served requests
	hasty    int // number of consecutive workers that crashed within hastyTime after they had begun to serve
	hung     int // number of consecutive workers that the watchdog has killed
}

// countHasty updates the count hasty after the end of the worker w, which has served: it adds 1 if w has crashed within
// hastyTime, and resets the count if w has crashed later.
func (f *failures) countHasty(w *worker) {
	switch {
	case !w.crashed():
	case w.endedAt.Sub(w.readyAt) < hastyTime:
		f.hasty++
	default:
		f.hasty = 0
	}
}

// pause returns the time to wait before the next worker is started, or 0 to start the next worker at once. The pause
// grows with each failure.
func (f *failures) pause() time.Duration {
	// The first hastyFree crashes in a row cause no pause, because the users of the mounts wait during a pause.
	n := max(f.unserved, f.hasty-hastyFree)
	if n <= 0 {
		return 0
	}
	return pauses.Limit(n)
}

// tooMany reports whether so many workers have failed that the supervisor must detach the mounts.
func (f *failures) tooMany() bool { return f.unserved >= giveUpAfter || f.hasty >= hastyLimit }

// nextIsLast reports whether one more failed worker may be too many.
func (f *failures) nextIsLast() bool { return f.unserved+1 >= giveUpAfter || f.hasty+1 >= hastyLimit }

// shown returns the number of failed workers that status shows.
func (f *failures) shown() int { return max(f.unserved, f.hasty) }

// patience returns how many times the time limits of a worker are doubled: once for each worker that the watchdog has
// killed.
func (f *failures) patience() int { return min(f.hung, maxDoublings) }
