package integration

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"
)

// instant is a moment from which time is counted that the machine had to spare. On a machine with more work than
// processors the rest of the time says nothing about the program.
type instant struct {
	at      time.Time
	stalled time.Duration // in which something waited for a processor, memory or a disk
}

func now() instant { return instant{time.Now(), stalledTime()} }

// elapsed returns the time since the moment, without what the machine was too busy in.
func (i instant) elapsed() time.Duration { return max(0, time.Since(i.at)-i.overload()) }

// overload returns the time since the moment in which the machine had too much to do.
func (i instant) overload() time.Duration { return stalledTime() - i.stalled }

// stalledTime sums up what the kernel reports in /proc/pressure (Documentation/accounting/psi.rst); 0 where it does not.
func stalledTime() (sum time.Duration) {
	for _, what := range []string{"cpu", "memory", "io"} {
		text, _ := os.ReadFile("/proc/pressure/" + what)
		_, total, _ := bytes.Cut(text, []byte("total=")) // of "some", the first line
		var us int64
		fmt.Sscan(string(total), &us)
		sum += time.Duration(us) * time.Microsecond
	}
	return sum
}

// Time in which the machine has more to do than processors does not count.
func TestInstant(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil {
		t.Skip(err)
	}
	i := now()
	i.at, i.stalled = i.at.Add(-time.Hour), i.stalled-50*time.Minute
	if got := i.elapsed(); got > 11*time.Minute {
		t.Errorf("an hour, of which 50 minutes were overloaded: got %v, want about 10 minutes", got)
	}
}
