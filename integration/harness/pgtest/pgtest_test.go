package pgtest

import (
	"errors"
	"testing"
)

// TestKilledServerKeepsItsRows checks that rows which were committed before a kill of the server exist after it was
// started again.
func TestKilledServerKeepsItsRows(t *testing.T) {
	s, err := Start(Options{})
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Create("kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Query("kept", "create table t (n int); insert into t values (7)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Query("kept", "select n from t"); err == nil {
		t.Error("killed server answers")
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Query("kept", "select n from t"); err != nil || got != "7" {
		t.Errorf("row after the kill: got %q, %v, want 7", got, err)
	}
}
