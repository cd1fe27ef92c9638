package readprofile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var ended = time.Unix(1_700_000_000, 0)

// recording returns a recording of paths.
func recording(paths ...string) Recording { return Recording{Paths: paths, Ended: ended} }

// names returns the names of the paths of a profile.
func names(p Profile) (list []string) {
	for _, path := range p.Paths {
		list = append(list, path.Name)
	}
	return list
}

func TestMergeKeepsTheNewestOrder(t *testing.T) {
	p := Profile{}.Merge(recording("a", "b", "c")).Merge(recording("c", "d", "c"))
	if got, want := names(p), []string{"c", "d", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("paths after two recordings: got %q, want %q", got, want)
	}
	if p.Recordings != 2 || !p.Recorded.Equal(ended) {
		t.Errorf("profile has %d recordings, the last at %s; want 2 at %s", p.Recordings, p.Recorded, ended)
	}
}

func TestMergeDropsPathsThatAreNoLongerRead(t *testing.T) {
	p := Profile{}.Merge(recording("old", "both"))
	for i := range Recordings {
		if !slices.Contains(names(p), "old") {
			t.Fatalf("path was dropped after %d recordings without it, want %d", i, Recordings)
		}
		p = p.Merge(recording("both"))
	}
	if got := names(p); !slices.Equal(got, []string{"both"}) {
		t.Errorf("paths after %d recordings without one of them: got %q, want [both]", Recordings, got)
	}
}

func TestReadingNearlyEverythingIsStoredWithoutPaths(t *testing.T) {
	var paths []string
	for i := range 1000 {
		paths = append(paths, fmt.Sprintf("dir/file%d", i))
	}
	for _, c := range []struct {
		read, files int
		whole       bool
	}{{750, 1000, true}, {749, 1000, false}, {1000, 2000, false}, {10, 10, false}} {
		r := NewRecording(paths[:c.read], c.files, ended)
		if r.Whole != c.whole || r.Whole != (len(r.Paths) == 0) {
			t.Errorf("%d of %d files: recording has whole %v and %d paths, want whole %v", c.read, c.files, r.Whole,
				len(r.Paths), c.whole)
		}
	}
	if many := slices.Repeat(paths, MaxPaths/len(paths)); !NewRecording(many, 2*MaxPaths, ended).Whole {
		t.Errorf("half of a tree, and as many paths as fit: recording is not Whole")
	}
	p := Profile{}.Merge(recording("a")).Merge(Recording{Whole: true, Ended: ended})
	if !p.Whole || len(p.Paths) > 0 || len(p.Encode()) > 32 {
		t.Errorf("profile of a search: whole %v, %d paths, %d bytes; want true, 0, at most 32", p.Whole, len(p.Paths),
			len(p.Encode()))
	}
	for range Recordings {
		if !p.Whole {
			t.Fatal("a single recording of a few files has replaced the recording of the whole tree")
		}
		p = p.Merge(recording("a"))
	}
	if p.Whole || !slices.Equal(names(p), []string{"a"}) {
		t.Errorf("profile after %d other recordings: whole %v, paths %q; want false, [a]", Recordings, p.Whole, names(p))
	}
}

func TestParseReadsWhatEncodeWrites(t *testing.T) {
	full := recording()
	for i := range MaxPaths {
		full.Paths = append(full.Paths, fmt.Sprintf("some/directory/with/a/long/name/%d/file.go", i))
	}
	for name, p := range map[string]Profile{
		"empty": {},
		"paths": Profile{}.Merge(recording("b/c", "b/d", "a", "\xff\n")).Merge(recording("a", "z")),
		"whole": Profile{}.Merge(Recording{Whole: true, Ended: ended}).Merge(recording("a")),
		"full":  Profile{}.Merge(full),
	} {
		got, err := Parse(p.Encode())
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: parsed profile has %d paths, error %v; want the %d encoded ones", name, len(got.Paths),
				err, len(p.Paths))
		}
	}
}

func TestEncodeKeepsToTheMaximumSize(t *testing.T) {
	r := recording()
	for i := range 5000 {
		r.Paths = append(r.Paths, fmt.Sprintf("%04d", i)+strings.Repeat("x", maxPath-4))
	}
	b := Profile{}.Merge(r).Encode()
	p, err := Parse(b)
	if err != nil || len(b) > MaxSize || len(p.Paths) < 4000 {
		t.Errorf("large profile: %d bytes, %d paths, error %v; want at most %d bytes and at least 4000 paths", len(b),
			len(p.Paths), err, MaxSize)
	}
}

func TestParseRejects(t *testing.T) {
	valid := Profile{}.Merge(recording("a/b", "a/c")).Encode()
	if _, err := Parse(valid); err != nil {
		t.Fatal(err)
	}
	for i := range valid {
		damaged := slices.Clone(valid)
		damaged[i] ^= 0x55
		if _, err := Parse(damaged); !errors.Is(err, ErrFormat) {
			t.Errorf("byte %d changed: error %v, want ErrFormat", i, err)
		}
		if _, err := Parse(valid[:i]); !errors.Is(err, ErrFormat) {
			t.Errorf("cut after %d bytes: error %v, want ErrFormat", i, err)
		}
	}
	for _, path := range []string{"", "/etc/passwd", "a/../b", "..", ".", "a//b", "a/", ".git/config", "a/.GIT/x",
		"a\x00b", strings.Repeat("x", maxPath+1)} {
		if _, err := Parse(Profile{Paths: []Path{{Name: path}}}.Encode()); !errors.Is(err, ErrFormat) {
			t.Errorf("path %.20q: error %v, want ErrFormat", path, err)
		}
	}
	for name, p := range map[string]Profile{
		"twice":   {Paths: []Path{{Name: "a"}, {Name: "a"}}},
		"missed":  {Paths: []Path{{Name: "a", Missed: Recordings}}},
		"flags":   {WholeMissed: 1},
		"missed2": {Whole: true, WholeMissed: Recordings},
	} {
		if _, err := Parse(p.Encode()); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: error %v, want ErrFormat", name, err)
		}
	}
	if _, err := Parse(make([]byte, MaxSize+1)); !errors.Is(err, ErrFormat) {
		t.Errorf("more than MaxSize bytes: error %v, want ErrFormat", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Profile{}.Encode())
	f.Add(Profile{}.Merge(recording("b/c", "b/d", "a")).Merge(recording("a", "z")).Encode())
	f.Add(Profile{}.Merge(Recording{Whole: true, Ended: ended}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(p.Encode())
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("profile changes if it is encoded and parsed again: %v", err)
		}
		for _, path := range p.Paths {
			if !filepath.IsLocal(path.Name) {
				t.Errorf("profile contains the path %q", path.Name)
			}
		}
	})
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"auto", "build", "npm-ci", "v1.2_x", "A"} {
		if err := ValidName(name); err != nil {
			t.Errorf("name %q: %v, want no error", name, err)
		}
	}
	for _, name := range []string{"", "none", ".x", "-x", "a/b", "a b", "..", "a..b", "x.lock", "x.",
		strings.Repeat("x", 65), "ä"} {
		if err := ValidName(name); !errors.Is(err, ErrName) {
			t.Errorf("name %q: error %v, want ErrName", name, err)
		}
	}
}

func TestRecorderKeepsFirstReads(t *testing.T) {
	r := NewRecorder([]string{"a"})
	for _, path := range []string{"b", "a", "c", "b", ".git/config"} {
		r.Note(path)
	}
	if got, want := r.Paths(), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("recorded paths: got %q, want %q", got, want)
	}
	if got := r.End(); len(got) != 3 {
		t.Errorf("paths at the end: got %q, want 3", got)
	}
	r.Note("d")
	if n, _ := r.Len(); n != 0 {
		t.Errorf("%d paths were recorded after the end, want 0", n)
	}
}

func TestRecorderIsBounded(t *testing.T) {
	r := NewRecorder(nil)
	for i := range MaxPaths + 10 {
		r.Note(fmt.Sprint(i))
	}
	if n, _ := r.Len(); n != MaxPaths {
		t.Errorf("recorder has %d paths, want %d", n, MaxPaths)
	}
}

func TestRecordingsOfMountsThatEndTogetherAreAllKept(t *testing.T) {
	d := DirOf(t.TempDir())
	var wg sync.WaitGroup
	for i := range Recordings {
		wg.Go(func() {
			if err := d.Add("build", recording(fmt.Sprintf("file%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p, err := d.Read("build")
	if err != nil || len(p.Paths) != Recordings || p.Recordings != Recordings {
		t.Errorf("profile of %d mounts: %d paths, %d recordings, error %v", Recordings, len(p.Paths), p.Recordings, err)
	}
}

func TestDir(t *testing.T) {
	d := DirOf(t.TempDir())
	if list, err := d.Names(); err != nil || len(list) > 0 {
		t.Errorf("names without a directory: %q, %v; want none", list, err)
	}
	for _, err := range []error{d.Delete("auto"), second(d.Read("auto"))} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("profile that does not exist: error %v, want fs.ErrNotExist", err)
		}
	}
	for _, name := range []string{"build", "auto"} {
		if err := d.Add(name, recording("a")); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := d.Names(); err != nil || !slices.Equal(list, []string{"auto", "build"}) {
		t.Errorf("names: %q, %v; want [auto build]", list, err)
	}
	if err := os.WriteFile(filepath.Join(d.Path, "auto"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("auto"); !errors.Is(err, ErrFormat) {
		t.Errorf("damaged profile: error %v, want ErrFormat", err)
	}
	if err := d.Add("auto", recording("b")); err != nil {
		t.Errorf("add to a damaged profile: %v, want no error", err)
	}
	if p, err := d.Read("auto"); err != nil || !slices.Equal(names(p), []string{"b"}) {
		t.Errorf("profile that replaces a damaged one: %q, %v; want [b]", names(p), err)
	}
	if err := d.Delete("build"); err != nil {
		t.Error(err)
	}
	if list, _ := d.Names(); !slices.Equal(list, []string{"auto"}) {
		t.Errorf("names after the deletion: %q, want [auto]", list)
	}
	if err := d.Add("../x", recording("a")); !errors.Is(err, ErrName) {
		t.Errorf("name with a slash: error %v, want ErrName", err)
	}
}

// second returns the second of two results.
func second(_ Profile, err error) error { return err }
