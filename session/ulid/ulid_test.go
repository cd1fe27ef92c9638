package ulid

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestNew checks that IDs that several goroutines make at the same time with different clocks are different, and that
// those of each goroutine ascend.
func TestNew(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	var group sync.WaitGroup
	made := make([][]ID, 4)
	start := make(chan struct{})
	for g := range made {
		group.Go(func() {
			<-start
			for i := range 500 {
				made[g] = append(made[g], New(at.Add(time.Duration(i*g-500)*time.Millisecond)))
			}
		})
	}
	close(start)
	group.Wait()
	seen := map[ID]bool{}
	for g, ids := range made {
		if !slices.IsSorted(ids) {
			t.Errorf("IDs of goroutine %d do not ascend", g)
		}
		for _, id := range ids {
			if seen[id] || len(id) != Len {
				t.Fatalf("new ID %s: got it twice, or with the wrong length", id)
			}
			seen[id] = true
		}
	}
}

// TestNewAfter checks that an ID sorts after one that another process has made in the same millisecond, or with a clock
// that is ahead.
func TestNewAfter(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_123) // later than in other tests
	last := New(at)
	// other returns the ID of another process.
	other := func(at time.Time, random string) ID {
		var raw [16]byte
		binary.BigEndian.PutUint64(raw[:8], uint64(at.UnixMilli())<<16)
		return encode(raw)[:10] + ID(strings.Repeat(random, 16))
	}
	hour := at.Add(time.Hour)
	for _, c := range []struct {
		name  string
		after ID
		now   time.Time
	}{
		{"no ID", "", at.Add(time.Second)},
		{"an older one", other(at, "Z"), at.Add(time.Minute)},
		{"an older one, with a clock that was set back", other(at, "0"), at.Add(-time.Hour)},
		{"one of the same millisecond", other(hour, "Y"), hour.Add(700 * time.Microsecond)},
		{"one of a clock that is ahead", other(hour.Add(time.Hour), "0"), hour},
		{"the last one of its millisecond", other(hour.Add(time.Hour+time.Millisecond), "Z"), hour.Add(time.Second)},
	} {
		id := NewAfter(c.now, c.after)
		if _, err := Parse(string(id)); id <= c.after || id <= last || err != nil {
			t.Errorf("ID after %s: got %s, %v, want one after %s and after %s", c.name, id, err, c.after, last)
		}
		last = id
	}
	// A text that is not an ID is ignored.
	if id := NewAfter(at, "no ID"); id <= last || id[:10] != last[:10] {
		t.Errorf("ID after a text that is no ID: got %s, want the one that follows %s", id, last)
	}
}

// TestNewAfterFarAhead checks that IDs sort after one whose time is years ahead, which somebody may have pushed, and that
// the other IDs of the process still have the time of the clock.
func TestNewAfterFarAhead(t *testing.T) {
	at := time.UnixMilli(1_900_000_000_123) // later than in other tests
	for _, after := range []ID{
		"0ZZZZZZZ00" + ID(strings.Repeat("0", 16)), "0ZZZZZZZ01" + ID(strings.Repeat("Z", 16)),
		"7ZZZZZZZZZ" + ID(strings.Repeat("0", 16)), "7ZZZZZZZZZ" + ID(strings.Repeat("Z", 15)) + "X",
	} {
		first, second := NewAfter(at, after), NewAfter(at, after)
		if _, err := Parse(string(first)); first <= after || err != nil {
			t.Errorf("ID after %s: got %s, %v", after, first, err)
		}
		if second <= first && after[:24] != "7ZZZZZZZZZZZZZZZZZZZZZZZ" {
			t.Errorf("two IDs after %s: got %s and then %s", after, first, second)
		}
		if third := NewAfter(at, first); third <= first && first != ID("7"+strings.Repeat("Z", 25)) {
			t.Errorf("ID after %s: got %s", first, third)
		}
	}
	// Nothing sorts after the greatest ID.
	for _, id := range []ID{New(at), NewAfter(at, ID("7"+strings.Repeat("Z", 25))), NewAfter(at, "")} {
		if got := id.Time(); !got.Equal(at) {
			t.Errorf("time of a later ID: got %s, want %s", got, at)
		}
	}
}

// TestParse checks that a text in upper or lower case is an ID if it has 128 bits, and that the letters that are not
// digits of an ID are not accepted.
func TestParse(t *testing.T) {
	const example = "01ARYZ6S41TSV4RRFFQ69G5FAV"
	if id, err := Parse(strings.ToLower(example)); err != nil || id != example {
		t.Errorf("parse %s in lower case: got %s, %v", example, id, err)
	}
	if got := encode(decode(example)); got != example {
		t.Errorf("decode and encode %s: got %s", example, got)
	}
	if got := ID(example).Time().UnixMilli(); got != 1469918176385 { // from the specification
		t.Errorf("time of %s: got %d, want 1469918176385", example, got)
	}
	for _, bad := range []string{"", example[1:], example + "0", "8" + example[1:], example[:25] + "I", example[:25] + "L",
		example[:25] + "O", example[:25] + "U", example[:25] + "-", example[:24] + "\xc3\xa4"} {
		if id, err := Parse(bad); !errors.Is(err, ErrID) {
			t.Errorf("parse %q: got %s, %v, want %v", bad, id, err, ErrID)
		}
	}
}
