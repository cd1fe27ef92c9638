package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var bootA, bootB = [16]byte{1}, [16]byte{2}

func open(t testing.TB, path string, o Options) *Journal {
	t.Helper()
	if o.Boot == [16]byte{} {
		o.Boot = bootA
	}
	if o.Unused == nil {
		o.Unused = func() bool { return true }
	}
	j, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.log.unmap() })
	return j
}

// kill leaves the file as after a kill of the process, so that the test can open it again.
func (j *Journal) kill() { j.log.unmap() }

func note(j *Journal, key uint64, path string) {
	j.MakeRoom()
	var f Flight
	if !j.Covers(&f, key) {
		j.Note(&f, key, path)
	}
	j.Land(&f)
}

// ask checks the changes since a position ("*": anything may have changed) and returns the next position.
func ask(t testing.TB, j *Journal, token, want string) string {
	t.Helper()
	next, paths, known := j.Since(token)
	got := strings.Join(paths, " ")
	if !known {
		got = "*"
	}
	if got != want {
		t.Errorf("changes since %s: got %q, want %q", token, got, want)
	}
	return next
}

func TestQuestions(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), Options{})
	start := ask(t, j, j.Start(), "")
	note(j, 1, "a")
	note(j, 2, "b")
	note(j, 1, "a")
	one := ask(t, j, start, "a b")
	ask(t, j, one, "")
	note(j, 1, "a")
	note(j, 3, "dir/")
	two := ask(t, j, one, "a dir/")
	ask(t, j, start, "a b dir/")
	ask(t, j, two, "")
	ask(t, j, one+"+note", "a dir/")
	for _, token := range []string{"", "x", "0:1", formatToken(j.epoch, 99), formatToken(j.epoch+1, 0), j.Start() + "0x"} {
		ask(t, j, token, "*")
	}
	note(j, 4, "/")
	ask(t, j, two, "*")
}

// A change that is in progress during a query is reported again by the next query, until a query that begins after the
// end of the change.
func TestFlights(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), Options{})
	note(j, 1, "before")
	var f, g Flight
	j.Note(&f, 2, "slow")
	note(j, 3, "other")
	if !j.Covers(&g, 9, 3) {
		t.Error("a record that no query has returned does not cover another change of the path")
	}
	token := ask(t, j, j.Start(), "before slow other")
	token = ask(t, j, token, "slow other")
	if j.Covers(&g, 1) {
		t.Error("a record that a query has returned covers another change of the path")
	}
	j.Land(&f)
	token = ask(t, j, token, "slow other")
	token = ask(t, j, token, "other")
	j.Land(&g)
	token = ask(t, j, token, "other")
	ask(t, j, token, "")

	j.Hold(&f)
	note(j, 5, "named meanwhile")
	token = ask(t, j, token, "named meanwhile")
	j.Land(&f)
	token = ask(t, j, token, "named meanwhile")
	ask(t, j, token, "")
	if len(j.flights) > 0 {
		t.Errorf("changes in progress: got %v, want none", j.flights)
	}
}

func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(j *Journal) error
		boot [16]byte
		over bool
		want string
	}{
		{name: "closed", end: (*Journal).Close, boot: bootA, want: "late new"},
		{name: "closed, another boot", end: (*Journal).Close, boot: bootB, want: "late new"},
		{name: "killed", end: func(j *Journal) error { j.kill(); return nil }, boot: bootA, want: "early late new"},
		{name: "taken over", end: func(j *Journal) error { j.kill(); return nil }, boot: bootA, over: true, want: "late new"},
		{name: "power loss, called a takeover", end: func(j *Journal) error { j.kill(); return nil }, boot: bootB,
			over: true, want: "*"},
		{name: "power loss", end: func(j *Journal) error { j.kill(); return nil }, boot: bootB, want: "*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			j := open(t, path, Options{})
			note(j, 1, "early")
			token := ask(t, j, j.Start(), "early")
			note(j, 2, "late")
			if err := c.end(j); err != nil {
				t.Fatal(err)
			}
			ro := open(t, path, Options{Boot: c.boot, ReadOnly: true, TakeOver: c.over, Unused: func() bool { return false }})
			ask(t, ro, token, strings.TrimSuffix(c.want, " new"))
			ro.kill()

			j = open(t, path, Options{Boot: c.boot, TakeOver: c.over, Unused: func() bool { return false }})
			note(j, 1, "new")
			next := ask(t, j, token, c.want)
			ask(t, j, next, "")
			note(j, 3, "x")
			ask(t, j, next, "x")
			if c.want == "*" {
				ask(t, j, j.Start(), "*")
			} else {
				ask(t, j, j.Start(), "early late new x")
			}
		})
	}
}

// A query after two kills in a row does not report all changes again.
func TestKilledTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, Options{})
	note(j, 1, "a")
	j.kill()
	j = open(t, path, Options{})
	token := ask(t, j, j.Start(), "a")
	note(j, 1, "b")
	j.kill()
	j = open(t, path, Options{})
	token = ask(t, j, token, "a b")
	ask(t, j, token, "")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, path, Options{})
	ask(t, j, token, "")
}

// File and memory stay small for any number of changes, and every answer is complete or states that the position is
// unknown.
func TestBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	const limit = 8 << 10
	j := open(t, path, Options{limit: limit})
	type asked struct {
		token string
		at    int
	}
	tokens := []asked{{j.Start(), 0}}
	known := 0
	for i := range 5_000 {
		note(j, uint64(i%700+1), fmt.Sprint("dir/file", i%700))
		if i%97 == 0 {
			next, _, _ := j.Since("")
			tokens = append(tokens, asked{next, i + 1})
		}
		if i%1001 == 0 {
			j.kill()
			j = open(t, path, Options{limit: limit})
		}
		a := tokens[max(0, len(tokens)-1-i%8)]
		_, paths, ok := j.Since(a.token)
		if !ok {
			continue
		}
		known++
		for k := a.at; k <= i; k++ {
			if name := fmt.Sprint("dir/file", k%700); !slices.Contains(paths, name) {
				t.Fatalf("change %d of %s is not reported to the client that knew %d", k, name, a.at)
			}
		}
	}
	if known < 1_000 {
		t.Errorf("only %d positions were known", known)
	}
	if st, err := os.Stat(path); err != nil || st.Size() > limit {
		t.Errorf("size of the file: got %d bytes, %v", st.Size(), err)
	}
	for i := range 3 * keys {
		var f Flight
		j.Note(&f, uint64(i)+1, "x")
		j.Land(&f)
	}
	if len(j.noted) > keys {
		t.Errorf("keys in memory: got %d", len(j.noted))
	}
}

// If the disk has no space for a rewritten file, the journal starts anew in the same file, and no change fails.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	const limit = 8 << 10
	j := open(t, path, Options{limit: limit})
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	token := j.Start()
	for i := range 1000 {
		note(j, 0, fmt.Sprint("file", i))
	}
	ask(t, j, token, "*")
	token, _, _ = j.Since("")
	note(j, 0, "after")
	ask(t, j, token, "after")
	j.kill()
	j = open(t, path, Options{limit: limit})
	note(j, 0, "later")
	if _, paths, ok := j.Since(token); ok && !slices.Contains(paths, "later") {
		t.Errorf("changes after the crash: got %q, want them to contain later", paths)
	}
}

func TestLongPath(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), Options{})
	note(j, 0, strings.Repeat("0123456789/", 10_000)+"name")
	_, paths, ok := j.Since(j.Start())
	if !ok || len(paths) != 1 || !strings.HasSuffix(paths[0], "9/") || len(paths[0]) > maxPath {
		t.Errorf("changes after a long path: got ok %v and %d paths, want its prefix of whole names alone", ok, len(paths))
	}
}

func BenchmarkNote(b *testing.B) {
	j := open(b, filepath.Join(b.TempDir(), "journal"), Options{})
	b.Run("new", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			note(j, uint64(i)+1, "some/directory/of/the/tree/file.go")
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			note(j, 1<<40, "some/directory/of/the/tree/file.go")
		}
	})
}
