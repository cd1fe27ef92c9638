package supervisor

import (
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// meter measures how long a process could not run because the host was busy, so that such a worker is not mistaken for
// one that hangs.
type meter interface {
	// starved returns for how long, during the last period, the process pid was ready to run but waited for a
	// processor, a memory page or a disk. The parameter passed is the length of the period. The first call for a
	// process returns an estimate.
	starved(pid int, passed time.Duration) time.Duration
}

// threads is a meter that reads the times of the threads of a process in /proc. The map last holds the times of the
// threads of the process pid at the previous call of starved; a call for another process ignores them.
type threads struct {
	pid  int
	last map[string]threadTimes // times at the previous call of starved, by thread ID
}

// threadTimes holds the times of a thread, as proc.Process.Times returns them.
type threadTimes struct {
	// ran is the time on a processor, and waited is the time of waiting for a processor. A wait is counted when it has
	// ended.
	ran, waited time.Duration
}

// starved implements meter. It returns the waiting time of the thread that waited longest, because one thread that
// cannot run may block all others.
func (m *threads) starved(pid int, passed time.Duration) time.Duration {
	before := m.last
	if pid != m.pid {
		// The times in m.last belong to another process, so ignore them.
		before = nil
	}
	m.pid, m.last = pid, make(map[string]threadTimes, len(before))
	var most time.Duration
	for id, thread := range proc.Of(pid).Threads() { // threads may end during the loop
		state, now, ok := readThread(thread)
		if !ok {
			continue
		}
		m.last[id] = now
		was, known := before[id]
		switch {
		case state == 'D': // the thread reads a page or waits for a disk, where even a signal would not reach it
			most = passed
		case state == 'R' && known && now.ran == was.ran: // the thread was in the queue of a processor for the whole period
			most = passed
		case known:
			most = max(most, min(now.waited-was.waited, passed))
		}
	}
	return most
}

// readThread returns the state of a thread, in the form of proc.Stat.State, and its times. The result ok is false if
// the thread has ended.
func readThread(thread proc.Process) (state byte, t threadTimes, ok bool) {
	stat, err := thread.Stat()
	if err != nil {
		return 0, t, false
	}
	t.ran, t.waited, ok = thread.Times()
	return stat.State, t, ok
}
