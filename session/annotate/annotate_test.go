package annotate

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// add appends an act to the contents of an annotations file and returns its id.
func add(t testing.TB, file *[]byte, a Act) string {
	t.Helper()
	if a.Actor == "" {
		a.Actor = "alice"
	}
	next, a, err := Append(*file, a, start)
	if err != nil {
		t.Fatal(err)
	}
	*file = next
	return a.ID
}

func TestThreads(t *testing.T) {
	var file []byte
	one := add(t, &file, Act{Op: Open, On: &Place{}, Text: "first"})
	two := add(t, &file, Act{Op: Open, On: &Place{Path: "a", Blob: "b", Tree: "t", Line: 2, End: 3},
		Text: "second <&>\nof two lines"})
	reply := add(t, &file, Act{Op: Reply, Thread: one, Actor: "bob", Text: "why?"})
	add(t, &file, Act{Op: Resolve, Thread: one})
	add(t, &file, Act{Op: Resolve, Thread: two, Text: "done"})
	add(t, &file, Act{Op: Reopen, Thread: two})
	all := Threads(Parse(file))
	if len(all) != 2 || all[0].ID != one || !all[0].Resolved || len(all[0].Acts) != 3 || all[1].Resolved ||
		len(all[1].Acts) != 3 ||
		all[1].On.End != 3 || all[1].Acts[0].Text != "second <&>\nof two lines" || all[0].Acts[1].Actor != "bob" {
		t.Errorf("threads: got %+v", all)
	}
	if bytes.Contains(file, []byte(`\u003c`)) {
		t.Errorf("the file escapes HTML: %s", file)
	}
	for text, want := range map[string]string{one: one, strings.ToLower(reply): one, two[:26]: two} {
		if got, err := Find(all, text); err != nil || got.ID != want {
			t.Errorf("find %s: got %s and %v, want %s", text, got.ID, err, want)
		}
	}
	for text, want := range map[string]error{"": ErrNoThread, "01M80Q4Z50EZKC5YR3HTMPRYYQ": ErrNoThread,
		one[:8]: ErrAmbiguous} {
		if _, err := Find(all, text); !errors.Is(err, want) {
			t.Errorf("find %q: got %v, want %v", text, err, want)
		}
	}
}

func TestInvalidActsAreRefused(t *testing.T) {
	var file []byte
	one := add(t, &file, Act{Op: Open, On: &Place{}, Text: "first"})
	for name, a := range map[string]Act{
		"no text":             {Op: Open, On: &Place{}, Text: " \n"},
		"long text":           {Op: Open, On: &Place{}, Text: strings.Repeat("x", MaxText+1)},
		"text is not UTF-8":   {Op: Open, On: &Place{}, Text: "\xff"},
		"no place":            {Op: Open, Text: "x"},
		"unknown operation":   {Op: "like", Thread: one, Text: "x"},
		"empty reply":         {Op: Reply, Thread: one},
		"long actor":          {Op: Reply, Thread: one, Text: "x", Actor: strings.Repeat("a", 201)},
		"lines without path":  {Op: Open, On: &Place{Line: 1, End: 1}, Text: "x"},
		"lines backwards":     {Op: Open, On: &Place{Path: "a", Blob: "b", Tree: "t", Line: 3, End: 2}, Text: "x"},
		"path without blob":   {Op: Open, On: &Place{Path: "a", Tree: "t"}, Text: "x"},
		"checkpoint by a pin": {Op: Open, On: &Place{Checkpoint: "good"}, Text: "x"},
	} {
		if a.Actor == "" {
			a.Actor = "alice"
		}
		if _, _, err := Append(file, a, start); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if _, _, err := Append(file, Act{Op: Reply, Actor: "a", Thread: "01M80Q4Z50EZKC5YR3HTMPRYYQ", Text: "x"},
		start); !errors.Is(err, ErrNoThread) {
		t.Errorf("reply to a thread that does not exist: got %v", err)
	}
	full := bytes.Repeat([]byte("x\n"), MaxFile/2)
	if _, _, err := Append(full, Act{Op: Open, Actor: "a", On: &Place{}, Text: "x"}, start); !errors.Is(err, ErrFull) {
		t.Errorf("file of %d bytes: got %v, want ErrFull", len(full), err)
	}
}

// TestLaterVersionsAreKept checks that lines, fields and operations of later versions are kept in the file, and that
// other lines can be read nevertheless.
func TestLaterVersionsAreKept(t *testing.T) {
	var file []byte
	one := add(t, &file, Act{Op: Open, On: &Place{}, Text: "first"})
	later := []string{
		`{"v":2,"id":"01M80Q4Z50EZKC5YR3HTMPRYYQ","time":"2026-03-01T12:00:00Z","actor":"a","op":"like","thread":"` + one +
			`"}`,
		`{"v":2,"id":"01M80Q4Z50EZKC5YR3HTMPRYYR","time":"2026-03-01T12:00:00Z","actor":"a","op":"reply","thread":"` + one +
			`","text":"x","mood":{"a":[1]}}`,
		`{"v":3,"id":"7ZZ","what":true}`,
		`not JSON`,
	}
	file = Merge([]byte(strings.Join(later, "\n")), file)
	add(t, &file, Act{Op: Resolve, Thread: one})
	for _, line := range later {
		if !slices.Contains(strings.Split(string(file), "\n"), line) {
			t.Errorf("line is missing after an act was added: %s", line)
		}
	}
	if all := Threads(Parse(file)); len(all) != 1 || !all[0].Resolved || len(all[0].Acts) != 3 ||
		all[0].Acts[0].ID != one {
		t.Errorf("threads: got %+v, want one with three acts", all)
	}
}

// TestMergeLosesNothing checks that the merge of two copies that were changed independently has each line once,
// whichever copy comes first.
func TestMergeLosesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var common []byte
		one := add(t, &common, Act{Op: Open, On: &Place{}, Text: "first"})
		copies := [][]byte{bytes.Clone(common), bytes.Clone(common), bytes.Clone(common)}
		want := strings.Split(strings.TrimSpace(string(common)), "\n")
		for i := range copies {
			for n := range random.IntN(5) {
				before := copies[i]
				add(t, &copies[i], Act{Op: Reply, Thread: one, Text: fmt.Sprint(i, n)})
				for line := range strings.Lines(string(copies[i])) {
					if !bytes.Contains(before, []byte(line)) {
						want = append(want, strings.TrimSpace(line))
					}
				}
			}
		}
		slices.SortFunc(want,
			func(a, b string) int { return strings.Compare(Parse([]byte(a))[0].ID, Parse([]byte(b))[0].ID) })
		first := Merge(Merge(copies[0], copies[1]), copies[2])
		other := Merge(copies[2], Merge(copies[1], Merge(copies[0], copies[1])))
		if got := strings.Join(want, "\n") + "\n"; string(first) != got || !bytes.Equal(first, other) {
			t.Fatalf("merge:\n%s\nin another order:\n%s\nwant:\n%s", first, other, got)
		}
	}
}

// TestSameIDTwice checks that acts with the same id and different contents are both kept, and that Parse returns the
// same one of them on each machine.
func TestSameIDTwice(t *testing.T) {
	var file []byte
	one := add(t, &file, Act{Op: Open, On: &Place{}, Text: "aaa"})
	forged := bytes.Replace(file, []byte("aaa"), []byte("bbb"), 1)
	for _, merged := range [][]byte{Merge(file, forged), Merge(forged, file)} {
		all := Threads(Parse(merged))
		if bytes.Count(merged, []byte(one)) != 4 || len(all) != 1 || all[0].Acts[0].Text != "aaa" {
			t.Errorf("got %s with the threads %+v", merged, all)
		}
	}
}

func TestQuote(t *testing.T) {
	text := []byte("a\r\nb\nc\nd\ne\nf\ng")
	for _, c := range []struct {
		first, last int
		want        string
	}{{1, 1, "a"}, {2, 3, "b\nc"}, {7, 7, "g"}, {1, 7, "a\nb\nc\nd\ne"}} {
		if got := Quote(text, c.first, c.last); got != c.want {
			t.Errorf("quote of lines %d to %d: got %q, want %q", c.first, c.last, got, c.want)
		}
	}
	if got := Quote([]byte(strings.Repeat("ä", 400)), 1, 1); len(got) != maxQuote {
		t.Errorf("quote of a long line has %d bytes", len(got))
	}
	if a, b, c := Lines(nil), Lines([]byte("a")), Lines([]byte("a\nb\n")); a != 0 || b != 1 || c != 2 {
		t.Errorf("lines: got %d, %d, %d", a, b, c)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"01M80Q4Z50EZKC5YR3HTMPRYYQ","time":"2026-03-01T12:00:00Z","actor":"a","op":"open",`+
		`"thread":"01M80Q4Z50EZKC5YR3HTMPRYYQ","on":{"path":"a","blob":"b","tree":"c","line":1,"end":2},"text":"x"}`+"\n"),
		[]byte("x\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		Threads(Parse(a))
		merged := Merge(a, b)
		if !bytes.Equal(merged, Merge(b, a)) || !bytes.Equal(merged, Merge(merged, a)) {
			t.Errorf("merge of %q and %q depends on the order", a, b)
		}
		if n := len(Threads(Parse(merged))); n < len(Threads(Parse(a))) {
			t.Errorf("merge of %q and %q has %d threads, fewer than the first", a, b, n)
		}
	})
}
