package state

import (
	"errors"
	"slices"
	"testing"
)

func TestSegments(t *testing.T) {
	const first, second = "01M80Q4Z9W7XA3V6MEZKGN8CE9", "01M80Q4Z9W7XA3V6MEZKGN8CE8"
	table := New()
	defer table.Close()
	var b Batch
	b.Seal(Segment{second, 3072})
	b.Seal(Segment{first, 512})
	b.Seal(Segment{first, 1024})
	for range 2 { // a batch that is applied twice has the same effect
		if err := table.Apply(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if got, want := table.Segments, []Segment{{first, 1024}, {second, 3072}}; !slices.Equal(got, want) {
			t.Errorf("segments: got %+v, want %+v", got, want)
		}
	}
	for _, g := range []Segment{
		{first, 0}, {"", 1}, {"../../../../../etc/passwd00", 1}, {"01M80Q4Z9W7XA3V6MEZKGN8C/9", 1},
		{"01m80q4z9w7xa3v6mezkgn8ce9", 1}, {first + "0", 1}, {first[1:], 1},
	} {
		b.Reset()
		if b.Seal(g); !errors.Is(b.Err(), ErrBatch) {
			t.Errorf("segment %+v: got error %v, want ErrBatch", g, b.Err())
		}
		if err := table.Apply(b.Bytes()); !errors.Is(err, ErrBatch) || len(table.Segments) != 2 {
			t.Errorf("apply segment %+v: got error %v, want ErrBatch", g, err)
		}
	}
}

// A segment that was removed stays away in a copy of the table, and can be added again.
func TestUnseal(t *testing.T) {
	const first, second, third = "01M80Q4Z9W7XA3V6MEZKGN8CE7", "01M80Q4Z9W7XA3V6MEZKGN8CE8", "01M80Q4Z9W7XA3V6MEZKGN8CE9"
	table, copied := New(), New()
	defer table.Close()
	defer copied.Close()
	var b Batch
	b.Seal(Segment{first, 1024})
	b.Seal(Segment{second, 2048})
	b.Seal(Segment{third, 3072})
	b.Unseal(second)
	b.Unseal("01M80Q4Z9W7XA3V6MEZKGN8CE0") // is not there
	for range 2 {                          // a batch that is applied twice has the same effect
		if err := table.Apply(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if got, want := table.Segments, []Segment{{first, 1024}, {third, 3072}}; !slices.Equal(got, want) {
			t.Errorf("segments: got %+v, want %+v", got, want)
		}
	}
	b.Reset()
	for at, done := (Cursor{}), false; !done; {
		at, done = table.Dump(at, 100, &b)
	}
	if err := copied.Apply(b.Bytes()); err != nil || !slices.Equal(copied.Segments, table.Segments) {
		t.Errorf("copy of the table: got the segments %+v, %v, want %+v", copied.Segments, err, table.Segments)
	}
	for _, share := range []string{"", "../../../../../etc/passwd00", third + "0"} {
		b.Reset()
		if b.Unseal(share); !errors.Is(b.Err(), ErrBatch) {
			t.Errorf("share %q: got error %v, want ErrBatch", share, b.Err())
		}
		if err := table.Apply(b.Bytes()); !errors.Is(err, ErrBatch) || len(table.Segments) != 2 {
			t.Errorf("apply share %q: got error %v, want ErrBatch", share, err)
		}
	}
}
