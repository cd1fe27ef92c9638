package places

import (
	"errors"
	"testing"
)

// TestBodies checks that only large bodies, and those of unknown length, need places, that a token cannot have all, and
// that a server with little memory has fewer.
func TestBodies(t *testing.T) {
	b := NewBodies(NewMemory(640<<20, 0), 0)
	enter := func(length int64, token string) (func(), error) {
		return b.Enter(t.Context(), length, Of("ns", "repo", token)...)
	}
	var release func()
	for i, length := range []int64{smallBody + 1, -1, 1 << 20} {
		leave, err := enter(length, "a")
		if err != nil {
			t.Fatalf("body %d: %v", i, err)
		}
		release = leave
	}
	if n := b.places.Running(); n != 3 {
		t.Errorf("places of three large bodies: got %d", n)
	}
	if _, err := enter(-1, "a"); !errors.Is(err, ErrBusy) {
		t.Errorf("fourth body of a token: got %v, want %v", err, ErrBusy)
	}
	if _, err := enter(smallBody, "a"); err != nil {
		t.Errorf("small body of this token: %v", err)
	}
	if _, err := enter(-1, "b"); err != nil {
		t.Errorf("body of another token: %v", err)
	}
	release()
	if _, err := enter(-1, "a"); err != nil {
		t.Errorf("body after the end of another: %v", err)
	}
	for total, want := range map[int64]int{1 << 20: leastBody, 1 << 30: 16, 1 << 40: mostBody} {
		if got := NewBodies(NewMemory(total, 0), 0).places.o.Most; got != want {
			t.Errorf("places with %d bytes of memory: got %d, want %d", total, got, want)
		}
	}
	if got := NewBodies(nil, 0).places.o.Most; got != mostBody {
		t.Errorf("places without a limit of memory: got %d, want %d", got, mostBody)
	}
}
