package locks

import (
	"strings"
	"testing"
	"time"
)

// TestVerify checks that Verify accepts the changes that the methods of File make for the user of the token, and no
// others.
func TestVerify(t *testing.T) {
	var old File
	l := acquire(t, &old, alice, "src", start)
	acquire(t, &old, Caller{Session: "gone", Actor: "carol", Host: "h"}, "doc", start)
	if _, err := old.Release(bob, []string{"doc"}, true, "gone", start); err != nil {
		t.Fatal(err)
	}
	bound := Pusher{Actor: "bob", Session: "try"}
	free := Pusher{Actor: "bob"}
	admin := Pusher{Actor: "root", Controls: true}
	at := start.Add(time.Minute)
	edit := func(f func(f *File)) File {
		next := File{Version: version, Locks: append([]Lock(nil), old.Locks...), Forced: append([]Forced(nil), old.Forced...)}
		f(&next)
		return next
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lock := func(by Caller, pattern string, ttl time.Duration, at time.Time) File {
		return edit(func(f *File) { _, err := f.Acquire(by, []string{pattern}, ttl, "", at); do(err) })
	}
	force := edit(func(f *File) { _, err := f.Release(bob, []string{"src"}, true, "holiday", at); do(err) })
	for _, c := range []struct {
		what string
		by   Pusher
		next File
		want string // text that the error must contain; "": the change is accepted
	}{
		{"nothing", bound, edit(func(*File) {}), ""},
		{"an own lock", bound, lock(bob, "lib", time.Hour, at), ""},
		{"an own lock, with a token for all sessions", free, lock(bob, "lib", time.Hour, at), ""},
		{"a lock of another user", bound, lock(Caller{Session: "try", Actor: "eve", Host: "h"}, "lib", time.Hour, at),
			"the token is of bob"},
		{"a lock for another session", bound, lock(Caller{Session: "x", Actor: "bob", Host: "h"}, "lib", time.Hour, at),
			"for which the token may not lock"},
		{"a lock that overlaps", bound, edit(func(f *File) {
			other := l
			other.ID, other.Session, other.Actor, other.Pattern = "01M80Q4Z50EZKC5YR3HTMPRYYQ", "try", "bob", "src/a"
			f.Locks = append(f.Locks, other)
		}), "locked by session fix-login"},
		{"a lock from the future", bound, lock(bob, "lib", time.Hour, at.Add(10*time.Minute)), "too late"},
		{"a lock from the past", bound, lock(bob, "lib", time.Hour, at.Add(-10*time.Minute)), "not within"},
		{"renewal", Pusher{Actor: "dave", Session: "fix-login"}, edit(func(f *File) { f.Renew("fix-login", at) }), ""},
		{"renewal of another session", bound, edit(func(f *File) { f.Renew("fix-login", at) }), "may not lock"},
		{"renewal for ever", Pusher{Actor: "alice"}, edit(func(f *File) { f.Locks[0].Expires = at.Add(24 * time.Hour) }),
			"too late"},
		{"another pattern", Pusher{Actor: "alice"}, edit(func(f *File) { f.Locks[0].Pattern = "lib" }), "may not lock"},
		{"release of the own lock", Pusher{Actor: "dave", Session: "fix-login"},
			edit(func(f *File) { f.ReleaseAll("fix-login") }), ""},
		{"release of another session's lock", bound, edit(func(f *File) { f.ReleaseAll("fix-login") }),
			"removed without a record"},
		{"release of all by an administrator", admin, File{Version: version}, ""},
		{"forced removal", bound, force, ""},
		{"forced removal under another name", Pusher{Actor: "eve", Session: "try"}, force,
			`names the user "bob" and the session "try", but the token belongs to eve`},
		{"forced removal for another session", Pusher{Actor: "bob", Session: "x"}, force, "but the token belongs to bob"},
		{"forced removal with another lock in the record", bound, edit(func(f *File) {
			*f = force
			f.Forced = append([]Forced(nil), force.Forced...)
			f.Forced[1].Lock.Actor = "nobody"
		}), "has wrong data"},
		{"removal of a record", bound, edit(func(f *File) { f.Forced = nil }), "is missing"},
	} {
		err := Verify(old, c.next, c.by, at)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}
	if err := Verify(old, edit(func(f *File) { f.ReleaseAll("fix-login") }), bound, start.Add(time.Hour)); err != nil {
		t.Errorf("removal of a lock that has expired: got %v", err)
	}
	late := start.Add(KeepForced + time.Second)
	if err := Verify(old, edit(func(f *File) { f.Prune(late) }), bound, late); err != nil {
		t.Errorf("removal of an old record: got %v", err)
	}
}
