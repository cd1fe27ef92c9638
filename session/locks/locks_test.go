package locks

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	alice = Caller{Session: "fix-login", Actor: "alice", Host: "desk"}
	bob   = Caller{Session: "try", Actor: "bob", Host: "box"}
)

// acquire locks a pattern for an hour, and returns the lock.
func acquire(t *testing.T, f *File, by Caller, pattern string, now time.Time) Lock {
	t.Helper()
	made, err := f.Acquire(by, []string{pattern}, time.Hour, "refactoring", now)
	if err != nil || len(made) != 1 {
		t.Fatalf("lock %s: got %v, %v", pattern, made, err)
	}
	return made[0]
}

func TestAcquire(t *testing.T) {
	var f File
	l := acquire(t, &f, alice, "src/login.c", start)
	if want := start.Add(time.Hour); !l.Expires.Equal(want) || l.Session != "fix-login" || l.Actor != "alice" ||
		l.Host != "desk" {
		t.Errorf("lock: got %+v, want one that expires at %s", l, want)
	}
	for _, pattern := range []string{"src/login.c", "src", "src/*.c", "src/**", "**", "*/log[h-j]n.?", "src/login.c/x"} {
		var held *HeldError
		if _, err := f.Acquire(bob, []string{"other", pattern}, time.Hour, "", start); !errors.As(err, &held) ||
			held.Lock.ID != l.ID {
			t.Errorf("lock %s of another session: got %v, want a HeldError with the first lock", pattern, err)
		} else if !strings.Contains(err.Error(), "session fix-login (alice@desk)") {
			t.Errorf("error: got %q, want the holder", err)
		}
	}
	if len(f.Locks) != 1 {
		t.Errorf("locks after refused requests: got %v, want the first one", f.Locks)
	}
	acquire(t, &f, bob, "src/*.h", start)
	again := acquire(t, &f, alice, "src/login.c", start.Add(time.Minute))
	if again.ID != l.ID || !again.Since.Equal(l.Since) || !again.Expires.Equal(start.Add(61*time.Minute)) ||
		len(f.Locks) != 2 {
		t.Errorf("the same lock again: got %+v, want the id of the first one and a later end", again)
	}
	acquire(t, &f, alice, "src", start.Add(2*time.Hour)) // the lock of bob has expired
}

func TestClocksMayDiffer(t *testing.T) {
	var f File
	l := acquire(t, &f, alice, "a", start)
	for after, free := range map[time.Duration]bool{time.Hour - time.Second: false, time.Hour + Skew/2: false,
		time.Hour + Skew: true} {
		f := f
		_, err := f.Acquire(bob, []string{"a"}, time.Hour, "", start.Add(after))
		if (err == nil) != free || l.InForce(start.Add(after)) == free {
			t.Errorf("lock %s after the lock of another session for an hour: got %v, want success: %t", after, err, free)
		}
	}
}

func TestInvalid(t *testing.T) {
	var f File
	long := strings.Repeat("x", maxPattern+1)
	for _, pattern := range []string{"", "/a", "../a", "a/..", "./a", "a/", "a//b", ".git", ".git/index", "a\nb", "[a",
		"**/x", "a/**/b", "a[/]b", `a\`, "a**", long} {
		if _, err := f.Acquire(alice, []string{pattern}, time.Hour, "", start); !errors.Is(err, ErrInvalid) {
			t.Errorf("lock %.20q: got %v, want %v", pattern, err, ErrInvalid)
		} else if n := strings.Count(err.Error(), ErrInvalid.Error()); n != 1 {
			t.Errorf("lock %.20q: got %v, want an error that says once that the lock is invalid", pattern, err)
		}
	}
	for _, ttl := range []time.Duration{-1, 0, MinTTL - 1, MaxTTL + time.Second, 1 << 62} {
		if _, err := f.Acquire(alice, []string{"a"}, ttl, "", start); !errors.Is(err, ErrInvalid) {
			t.Errorf("lock for %s: got %v, want %v", ttl, err, ErrInvalid)
		}
	}
	if _, err := f.Acquire(alice, []string{"a"}, time.Hour, "a\nb", start); !errors.Is(err, ErrInvalid) {
		t.Errorf("lock with a reason of two lines: got %v, want %v", err, ErrInvalid)
	}
	for i := range maxLocks {
		acquire(t, &f, alice, fmt.Sprint("f", i), start)
	}
	if _, err := f.Acquire(bob, []string{"one-more"}, time.Hour, "", start); !errors.Is(err, ErrFull) {
		t.Errorf("lock %d: got %v, want %v", maxLocks+1, err, ErrFull)
	}
}

func TestRelease(t *testing.T) {
	var f File
	a, b := acquire(t, &f, alice, "a", start), acquire(t, &f, bob, "b", start)
	var held *HeldError
	if _, err := f.Release(bob, []string{"b", "a"}, false, "", start); !errors.As(err, &held) || len(f.Locks) != 2 {
		t.Errorf("release the lock of another session: got %v and %d locks, want a HeldError and 2", err, len(f.Locks))
	}
	if _, err := f.Release(bob, []string{"c"}, true, "x", start); !errors.Is(err, ErrNone) {
		t.Errorf("release a path without lock: got %v, want %v", err, ErrNone)
	}
	if _, err := f.Release(bob, []string{"a"}, true, "", start); !errors.Is(err, ErrInvalid) || len(f.Locks) != 2 {
		t.Errorf("force without a reason: got %v, want %v", err, ErrInvalid)
	}
	got, err := f.Release(bob, []string{strings.ToLower(a.ID), "b"}, true, "she is on holiday", start)
	if err != nil || len(got) != 2 || got[0].ID != a.ID || got[1].ID != b.ID || len(f.Locks) != 0 {
		t.Fatalf("force: got %v, %v, want both locks", got, err)
	}
	if len(f.Forced) != 1 || f.Forced[0].Lock.ID != a.ID || f.Forced[0].Actor != "bob" ||
		f.Forced[0].Reason != "she is on holiday" {
		t.Errorf("records: got %+v, want one of the lock of alice", f.Forced)
	}
	if f.Prune(start.Add(KeepForced)); len(f.Forced) != 1 {
		t.Error("record is gone too early")
	}
	if f.Prune(start.Add(KeepForced + 1)); len(f.Forced) != 0 {
		t.Error("record stays for ever")
	}
	for i := range maxForced + 1 {
		l := acquire(t, &f, alice, "a", start)
		if _, err := f.Release(bob, []string{l.ID}, true, fmt.Sprint(i), start); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.Forced) != maxForced || f.Forced[0].Reason != "1" {
		t.Errorf("%d records, the first with reason %s, want %d without the oldest", len(f.Forced),
			f.Forced[0].Reason, maxForced)
	}
	acquire(t, &f, alice, "a", start)
	acquire(t, &f, bob, "b", start)
	if !f.ReleaseAll("try") || f.ReleaseAll("try") || len(f.Locks) != 1 {
		t.Errorf("locks after the release of those of a session: got %v", f.Locks)
	}
}

func TestRenew(t *testing.T) {
	var f File
	if f.Renew("fix-login", start) || !f.RenewAt("fix-login").IsZero() {
		t.Error("a file without locks is renewed")
	}
	acquire(t, &f, alice, "a", start)
	acquire(t, &f, bob, "b", start)
	if at := f.RenewAt("fix-login"); !at.Equal(start.Add(20 * time.Minute)) {
		t.Errorf("time of the renewal: got %s, want 20 minutes after the start", at)
	}
	if !f.Renew("fix-login", start.Add(30*time.Minute)) || !f.Locks[0].Expires.Equal(start.Add(90*time.Minute)) ||
		!f.Locks[1].Expires.Equal(start.Add(time.Hour)) {
		t.Errorf("locks after a renewal of the first one: got %+v", f.Locks)
	}
	if f.Renew("try", start.Add(2*time.Hour)) {
		t.Error("a lock that has expired was renewed")
	}
}

func TestFile(t *testing.T) {
	var f File
	acquire(t, &f, alice, "a/**", start)
	acquire(t, &f, bob, "b", start)
	if _, err := f.Release(alice, []string{"b"}, true, "why not", start); err != nil {
		t.Fatal(err)
	}
	f.Version = version
	text, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(f) {
		t.Errorf("file after Encode and Parse: got %+v, %v, want %+v", got, err, f)
	}
	if got, err := Parse(nil); err != nil || len(got.Locks) != 0 {
		t.Errorf("empty file: got %+v, %v", got, err)
	}
	for _, bad := range []string{"x", "[]", `{"version":2,"locks":[]}`, `{"locks":[{}]}`,
		strings.Replace(string(text), "a/**", "../a", 1),
		strings.Replace(string(text), `"alice"`, `""`, 1), strings.Replace(string(text), "3600", "0", 1)} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrFile) {
			t.Errorf("parse %.60s: got %v, want %v", bad, err, ErrFile)
		}
	}
}

func FuzzParse(f *testing.F) {
	var file File
	if _, err := file.Acquire(alice, []string{"a/**", "b*"}, time.Hour, "x", start); err != nil {
		f.Fatal(err)
	}
	if _, err := file.Release(bob, []string{"b*"}, true, "y", start); err != nil {
		f.Fatal(err)
	}
	text, _ := file.Encode()
	f.Add(text)
	f.Add([]byte(`{"version":1,"locks":null}`))
	f.Add([]byte(`{"version":1,"locks":[{"id":"01M80Q4Z50EZKC5YR3HTMPRYYQ","session":"s","actor":"a","host":"h","pattern":"**","since":"2026-03-01T12:00:00Z","expires":"2026-03-01T12:00:00Z","ttl_seconds":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Parse(text)
		if err != nil {
			return
		}
		again, err := got.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Parse(again); err != nil || len(second.Locks) != len(got.Locks) {
			t.Errorf("parsed twice: got %v, %v, want %v", second, err, got)
		}
		v := View{Session: "other", Log: zap.NewNop()}
		v.Set(got, Refuse)
		v.Refuses("a/b/c", true)
		got.Renew("s", start)
		_, _ = got.Acquire(bob, []string{"**"}, time.Hour, "", start)
		_, _ = got.Release(bob, []string{"a", "01M8"}, true, "z", start)
	})
}

// covered lists patterns, each with a path that it covers and a path that it does not cover.
var covered = []struct{ pattern, covers, not string }{
	{"a", "a a/b a/b/c", "b ab b/a"},
	{"a/b", "a/b a/b/c", "a a/c ab"},
	{"a/*", "a/b a/b/c", "a b/b"},
	{"a/**", "a/b a/b/c", "a ab b/a"},
	{"**", "a a/b", ""},
	{"*.png", "a.png a.png/x", "a a/b.png a.pngx"},
	{"*/b?", "a/bc a/bc/d", "a/b bc"},
	{"a/[^b-c]", "a/a a/d/x", "a/b a/c a/dd"},
	{`a\*`, "a*", "ab a"},
}

func TestCovers(t *testing.T) {
	for _, c := range covered {
		for _, p := range strings.Fields(c.covers) {
			if !Covers(c.pattern, p) || !CoversBelow(c.pattern, p) {
				t.Errorf("%s covers %s: got false", c.pattern, p)
			}
		}
		for _, p := range strings.Fields(c.not) {
			if Covers(c.pattern, p) {
				t.Errorf("%s covers %s: got true", c.pattern, p)
			}
		}
	}
	for _, c := range []struct {
		pattern, dir string
		want         bool
	}{
		{"a/b", "a", true}, {"a/b/c", "a", true}, {"a/b/c", "a/b", true}, {"a/b", "b", false}, {"a/b/c", "a/c", false},
		{"*/x", "a", true},
		{"a*/x", "b", false}, {"a/**", "a", true}, {"a/b/**", "a", true}, {"a/b/**", "c", false}, {"**", "a", true},
		{"ab", "a", false},
	} {
		if got := CoversBelow(c.pattern, c.dir); got != c.want {
			t.Errorf("%s covers %s or something below it: got %t, want %t", c.pattern, c.dir, got, c.want)
		}
	}
}

// TestOverlapIsExact checks that Overlap returns true exactly if there is a path that both patterns cover. It tries all
// short paths of two letters.
func TestOverlapIsExact(t *testing.T) {
	components := []string{"a", "b", "*", "?", "a*", "*b", "?a", "[ab]", "[^a]", "[^a]b", "a*b", "*a*", `\*`, "ab"}
	patterns := append([]string{"**"}, components...)
	for _, c := range components[:8] {
		patterns = append(patterns, c+"/**", "a/"+c, c+"/b", c+"/"+c)
	}
	names := []string{"*"}
	for _, alphabet := range []string{"abc"} {
		last := []string{""}
		for range 3 {
			var next []string
			for _, n := range last {
				for _, c := range alphabet {
					next = append(next, n+string(c))
				}
			}
			names, last = append(names, next...), next
		}
	}
	paths := slices.Clone(names)
	for _, n := range names[:13] {
		for _, m := range names {
			paths = append(paths, n+"/"+m, n+"/"+m+"/c")
		}
	}
	sets := make([]map[string]bool, len(patterns))
	for i, pattern := range patterns {
		if err := CheckPattern(pattern); err != nil {
			t.Fatal(err)
		}
		sets[i] = map[string]bool{}
		for _, p := range paths {
			if Covers(pattern, p) {
				sets[i][p] = true
			}
		}
	}
	for i, a := range patterns {
		for j, b := range patterns {
			both := ""
			for p := range sets[i] {
				if sets[j][p] {
					both = p
					break
				}
			}
			if got := Overlap(a, b); got != (both != "") {
				t.Errorf("%s and %s overlap: got %t, but a path that both cover is %q", a, b, got, both)
			}
		}
	}
}

func FuzzPatterns(f *testing.F) {
	for _, c := range covered {
		for _, p := range strings.Fields(c.covers + " " + c.not) {
			f.Add(c.pattern, "a/*", p)
		}
	}
	f.Add("[^z-a]", "[a-]", "-")
	f.Fuzz(func(t *testing.T, a, b, p string) {
		if CheckPattern(a) != nil || CheckPattern(b) != nil || p == "" || path.Clean(p) != p || strings.HasPrefix(p, "/") {
			return
		}
		if Overlap(a, b) != Overlap(b, a) {
			t.Errorf("%q and %q overlap in one order only", a, b)
		}
		if Covers(a, p) && Covers(b, p) && !Overlap(a, b) {
			t.Errorf("%q and %q do not overlap, but both cover %q", a, b, p)
		}
		if dir := path.Dir(p); dir != "." {
			if Covers(a, dir) && !Covers(a, p) {
				t.Errorf("%q covers %q but not %q", a, dir, p)
			}
			if Covers(a, p) && !CoversBelow(a, dir) {
				t.Errorf("%q covers %q, but nothing below %q", a, p, dir)
			}
		}
	})
}

func TestView(t *testing.T) {
	now := time.Now()
	var f File
	acquire(t, &f, alice, "src/login.c", now)
	acquire(t, &f, bob, "doc/*.md", now)
	v := View{Session: "try", Log: zap.NewNop()}
	if v.Active() || v.Refuses("src/login.c", false) {
		t.Error("a view without locks refuses changes")
	}
	if added := v.Set(f, Refuse); len(added) != 1 || added[0].Pattern != "src/login.c" {
		t.Errorf("added: got %v, want the lock of the other session", added)
	}
	if added := v.Set(f, Refuse); len(added) != 0 {
		t.Errorf("added by the same locks: got %v, want none", added)
	}
	for _, c := range []struct {
		path  string
		below bool
		want  bool
	}{{"src/login.c", false, true}, {"src", false, false}, {"src", true, true}, {"src/x", true, false},
		{"doc/a.md", false, false}, {"s", true, false}} {
		if got := v.Refuses(c.path, c.below); got != c.want {
			t.Errorf("change of %s, below %t, is refused: got %t, want %t", c.path, c.below, got, c.want)
		}
	}
	v.Refuses("src/login.c", false)
	if r := v.Refusals(); len(r) != 2 || r[0].Path != "src/login.c" || r[0].Count != 2 || r[0].Allowed {
		t.Errorf("refusals: got %+v, want 2 paths, the file with 2 attempts first", r)
	}
	if notes := v.Notes(); len(notes) != 2 || !strings.Contains(notes[0],
		"src/login.c is locked by session fix-login (alice@desk) until") {
		t.Errorf("notes: got %q", notes)
	}
	if added := v.Set(f, Warn); len(added) != 1 || v.Refuses("src/login.c", false) ||
		v.Locked("src/login.c") || !v.Active() {
		t.Errorf("view that warns: got added %v", added)
	}
	if r := v.Refusals(); len(r) != 3 || !r[0].Allowed {
		t.Errorf("refusals of a view that warns: got %+v", r)
	}
	if v.Set(f, Ignore); v.Active() || len(v.Refusals()) != 0 {
		t.Error("a view that ignores locks is active")
	}
	f.Locks[0].Expires = now.Add(-Skew)
	if v.Set(f, Refuse); v.Active() {
		t.Error("a lock that has expired is active")
	}
}

func BenchmarkRefuses(b *testing.B) {
	var f File
	for i := range 100 {
		if _, err := f.Acquire(alice, []string{fmt.Sprintf("src/dir%d/*.c", i)}, time.Hour, "", time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	for name, set := range map[string]File{"none": {}, "100": f} {
		b.Run(name, func(b *testing.B) {
			v := View{Session: "try", Log: zap.NewNop()}
			v.Set(set, Refuse)
			for b.Loop() {
				if v.Active() && v.Refuses("src/file.c", false) {
					b.Fatal("refused")
				}
			}
		})
	}
}
