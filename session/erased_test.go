package session

import (
	"testing"
	"time"
)

// TestErasuresAreRecorded checks that the metadata get each erasure that erases more than those before.
func TestErasuresAreRecorded(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	var m Meta
	for i, c := range []struct {
		e    Erasure
		want int
	}{
		{Erasure{Before: at, Except: []string{"f"}}, 1},
		{Erasure{Before: at, Except: []string{"f"}}, 1},
		{Erasure{Before: at.Add(-time.Hour), Except: []string{"f", "g"}}, 1},
		{Erasure{Before: at, Except: []string{"g"}}, 2},
		{Erasure{Before: at}, 3},
		{Erasure{Before: at.Add(-time.Hour)}, 3},
		{Erasure{Before: at, IDs: []string{"x"}}, 4},
		{Erasure{IDs: []string{"x"}}, 4},
	} {
		if m.erase(c.e); len(m.Erased) != c.want {
			t.Errorf("erasure %d: %d are recorded, want %d", i, len(m.Erased), c.want)
		}
	}
}
