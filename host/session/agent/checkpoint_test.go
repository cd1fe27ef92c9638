package agent

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

func TestOldCheckpointsAreCounted(t *testing.T) {
	now := time.Now()
	var checkpoints []session.Checkpoint
	for day := range 10 {
		checkpoints = append(checkpoints, session.Checkpoint{Time: now.Add(-time.Duration(day)*24*time.Hour - time.Minute)})
	}
	for n, want := range map[int]int{0: 0, 7: 0, 8: 1, 10: 3} {
		if got := oldCheckpoints(checkpoints[:n], now); got != want {
			t.Errorf("%d of the newest %d are old, want %d", got, n, want)
		}
	}
}
