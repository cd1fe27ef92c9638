package agent

import (
	"strings"
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

func TestNoteAboutRequiredFilters(t *testing.T) {
	for want, files := range map[string][]string{"of a; the": {"a"}, "of a, b, c; the": {"a", "b", "c"},
		"of a, b, c and 2 more; the": {"a", "b", "c", "d", "e"}} {
		if got := unfilteredText(files); !strings.Contains(got, want) {
			t.Errorf("note about %q: got %q, want a text with %q", files, got, want)
		}
	}
}
