package supervisor

import (
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// meter distinguishes a worker that hangs from one that the host does not let run.
type meter interface {
	// starved returns for how much of the last passed the process could not run although it wanted
	// to: it waited for a processor, a page or a disk. The first call for a process returns an
	// estimate.
	starved(pid int, passed time.Duration) time.Duration
}

// threads is the meter that looks at the threads of a process in /proc.
// The process pid is the one whose times are in last; starved starts anew for another one.
type threads struct {
	pid  int
	last map[string]threadTimes // by thread id
}

// threadTimes are the times of a thread: proc.Process.Times.
type threadTimes struct {
	ran, waited time.Duration // on a processor, and for one; a wait counts when it has ended
}

// starved returns the time of the thread that waited longest, because one thread that cannot run may
// hold up all others.
func (m *threads) starved(pid int, passed time.Duration) time.Duration {
	before := m.last
	if pid != m.pid {
		// The thread ids of one process mean nothing in another.
		before = nil
	}
	m.pid, m.last = pid, make(map[string]threadTimes, len(before))
	var most time.Duration
	for id, thread := range proc.Of(pid).Threads() { // the process may end meanwhile
		state, now, ok := readThread(thread)
		if !ok {
			continue
		}
		m.last[id] = now
		was, known := before[id]
		switch {
		case state == 'D': // it reads a page or waits for a disk: a signal would not even reach it
			most = passed
		case state == 'R' && known && now.ran == was.ran: // in the queue all the time
			most = passed
		case known:
			most = max(most, min(now.waited-was.waited, passed))
		}
	}
	return most
}

// readThread returns the state of a thread, as proc.Stat has it, and its times. A stopped thread is
// in neither of the states that starve. ok is false if the thread has ended.
func readThread(thread proc.Process) (state byte, t threadTimes, ok bool) {
	stat, err := thread.Stat()
	if err != nil {
		return 0, t, false
	}
	t.ran, t.waited, ok = thread.Times()
	return stat.State, t, ok
}
