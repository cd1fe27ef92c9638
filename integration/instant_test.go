package integration

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"
)

// instant is a start time that measures elapsed time without the time in which the machine was overloaded, because on
// an overloaded machine that time does not depend on the program.
type instant struct {
	at      time.Time
	stalled time.Duration // in which something waited for a processor, memory or a disk
}

func now() instant { return instant{time.Now(), stalledTime()} }

// elapsed returns the time since the instant, without the time in which the machine was overloaded.
func (i instant) elapsed() time.Duration { return max(0, time.Since(i.at)-i.overload()) }

// overload returns the part of the time since the instant in which the machine was overloaded.
func (i instant) overload() time.Duration { return stalledTime() - i.stalled }

// stalledTime returns the sum of the stall times in /proc/pressure (Documentation/accounting/psi.rst); 0 if the kernel
// has none.
func stalledTime() (sum time.Duration) {
	for _, what := range []string{"cpu", "memory", "io"} {
		text, _ := os.ReadFile("/proc/pressure/" + what)
		_, total, _ := bytes.Cut(text, []byte("total=")) // the total of "some", the first line
		var us int64
		fmt.Sscan(string(total), &us)
		sum += time.Duration(us) * time.Microsecond
	}
	return sum
}

// The time in which the machine is overloaded does not count as elapsed.
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
