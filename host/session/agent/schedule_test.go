package agent

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func TestCheckpointsAreDueWhenWritesStop(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	idle, interval := schedule{kind: control.PolicyIdle}, schedule{kind: control.PolicyInterval, every: time.Minute}
	for name, c := range map[string]struct {
		schedule          schedule
		first, last, made time.Time
		want              time.Time
	}{
		"one write":               {idle, at(0), at(0), time.Time{}, at(2)},
		"writes that settle":      {idle, at(0), at(3), time.Time{}, at(5)},
		"writes without a rest":   {idle, at(0), at(9.5), time.Time{}, at(10)},
		"soon after a checkpoint": {idle, at(0), at(0), at(-1), at(9)},
		"long after a checkpoint": {idle, at(0), at(0), at(-60), at(2)},
		"interval":                {interval, at(0), at(50), at(-10), at(60)},
	} {
		if got := c.schedule.due(c.first, c.last, c.made); !got.Equal(c.want) {
			t.Errorf("case %s: checkpoint %v after the first change, want %v", name, got.Sub(start), c.want.Sub(start))
		}
	}
}

func TestCheckpointsAreDueSoonAfterGit(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for name, c := range map[string]struct {
		first, latest, tried time.Time
		took                 time.Duration
		want                 time.Time
	}{
		"nothing":                 {time.Time{}, time.Time{}, at(-9), 0, time.Time{}},
		"a commit":                {at(0), at(0.01), time.Time{}, 0, at(0.21)},
		"a rebase":                {at(0), at(0.9), time.Time{}, 0, at(1)},
		"soon after a checkpoint": {at(0), at(0), at(-0.2), 0, at(0.8)},
		"after one that lasts":    {at(0), at(0), at(-0.5), time.Second, at(4.5)},
		"after one that hangs":    {at(0), at(0), at(-1), time.Minute, at(9)},
	} {
		if got := (&gitSigns{first: c.first, latest: c.latest}).due(c.tried, c.took); !got.Equal(c.want) {
			t.Errorf("case %s: checkpoint %v after the first move, want %v", name, got.Sub(start), c.want.Sub(start))
		}
	}
}
