package integration

import (
	"os"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// instant is a start time that measures elapsed time without the time in which the machine was overloaded, because on
// an overloaded machine that time does not depend on the program.
type instant struct {
	at      time.Time
	stalled time.Duration // in which something waited for a processor, memory or a disk
}

func now() instant { return instant{time.Now(), await.StalledTime()} }

// elapsed returns the time since the instant, without the time in which the machine was overloaded.
func (i instant) elapsed() time.Duration { return max(0, time.Since(i.at)-i.overload()) }

// overload returns the part of the time since the instant in which the machine was overloaded.
func (i instant) overload() time.Duration { return await.StalledTime() - i.stalled }

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
