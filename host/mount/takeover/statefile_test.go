package takeover

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestStateFileIsWholeAtAnyMoment(t *testing.T) {
	s, err := newStateFile(State{ID: "first"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.file.Close()
	for i := range 5 {
		if err := s.update(func(h *State) { h.ID = fmt.Sprint(i); h.Request.Token = "secret" }); err != nil {
			t.Fatal(err)
		}
		again, err := openStateFile(s.file)
		if err != nil || again.get().ID != fmt.Sprint(i) || again.get().Request.Token != "secret" {
			t.Fatalf("open the state file again: %v, mount %+v", err, again.get())
		}
		// Cut the file at each byte of the next state, as a kill would.
		next := int64(again.number+1) % 2 * slotSize
		slot := make([]byte, 4096)
		if _, err := s.file.ReadAt(slot, next); err != nil && i > 0 && !errors.Is(err, os.ErrNotExist) {
			t.Log(err)
		}
		for cut := 0; cut < 200; cut += 7 {
			torn := append([]byte(nil), slot...)
			for at := cut; at < 200; at++ {
				torn[at] ^= 0x55
			}
			if _, err := s.file.WriteAt(torn, next); err != nil {
				t.Fatal(err)
			}
			if got, err := openStateFile(s.file); err != nil || got.get().ID != fmt.Sprint(i) {
				t.Fatalf("state file cut at byte %d: got %v, %+v", cut, err, got)
			}
		}
	}
	empty, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := openStateFile(empty); !errors.Is(err, errNoState) {
		t.Errorf("open an empty state file: got %v", err)
	}
}
