package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// meter tells a worker that hangs from one that the host does not let run.
type meter interface {
	// starved returns for how much of the last passed the process wanted to run and could not: it waited for a
	// processor, for a page, or for a disk. The first call for a process returns what one look can tell.
	starved(pid int, passed time.Duration) time.Duration
}

// threads is the meter that looks at the threads of a process in /proc.
type threads struct {
	pid  int
	last map[string]threadTimes // by thread id
}

// threadTimes are those of /proc/PID/task/TID/schedstat.
type threadTimes struct {
	ran, waited time.Duration // on a processor, and for one; a wait counts when it has ended
}

func (m *threads) starved(pid int, passed time.Duration) time.Duration {
	before := m.last
	if pid != m.pid {
		before = nil
	}
	m.pid, m.last = pid, make(map[string]threadTimes, len(before))
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	d, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer d.Close()
	ids, _ := d.Readdirnames(-1) // the process may end meanwhile
	var most time.Duration
	for _, id := range ids {
		state, now, ok := readThread(dir + "/" + id)
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

// readThread returns the state of a thread, a letter of proc(5), and its times. A stopped thread is in neither of the
// states that starve.
func readThread(dir string) (state byte, t threadTimes, ok bool) {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, t, false
	}
	behind := bytes.LastIndexByte(stat, ')') // the command before it may contain anything
	if behind < 0 || behind+2 >= len(stat) {
		return 0, t, false
	}
	text, err := os.ReadFile(dir + "/schedstat")
	if err != nil {
		return 0, t, false
	}
	var ran, waited int64 // nanoseconds
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return 0, t, false
	}
	return stat[behind+2], threadTimes{time.Duration(ran), time.Duration(waited)}, true
}
