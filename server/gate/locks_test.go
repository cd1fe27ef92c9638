package gate

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/locks"
)

func TestLocks(t *testing.T) {
	b := newBed(t, object.SHA1)
	carol, owner := records.Token{ID: "c", Actor: "carol", Session: "work"},
		records.Token{ID: "o", Role: records.OwnerToken}
	store := func(f locks.File) string {
		t.Helper()
		f.Version = 1
		text, err := f.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b.commit(b.refs[locks.Ref], map[string]string{locks.FileName: string(text)})
	}
	lock := func(f locks.File, name, actor string) locks.File {
		t.Helper()
		if _, err := f.Acquire(locks.Caller{Session: name, Actor: actor, Host: "h"}, []string{name}, time.Hour, "",
			now); err != nil {
			t.Fatal(err)
		}
		return f
	}
	one := func(what string, token records.Token, name, commit, want string) {
		t.Helper()
		got, _ := b.one(token, name, commit)
		wants(t, what, got, want)
	}
	first := lock(locks.File{}, "work", "carol")
	one("first lock", carol, locks.Ref, store(first), "")
	one("lock of another user", carol, locks.Ref, store(lock(locks.File{}, "work", "dave")), "the token is of carol")
	b.refs[locks.Ref] = store(first)
	second := store(lock(first, "other", "dave"))
	one("lock of another session", carol, locks.Ref, second, "for which the token may not lock")
	one("lock with a token for all sessions", records.Token{ID: "d", Actor: "dave"}, locks.Ref, second, "")
	one("no locks", carol, locks.Ref, store(locks.File{}), "")
	b.refs[locks.Ref] = second
	one("removal of the lock of another session", carol, locks.Ref, store(first), "removed without a record")
	one("removal by the owner", owner, locks.Ref, store(first), "")
	bad := b.commit(second, map[string]string{locks.FileName: "x"})
	one("invalid file", carol, locks.Ref, bad, "invalid file of locks")
	one("other file", carol, locks.Ref, b.commit(second, map[string]string{"x": "x"}), "does not contain the file")
	one("removal of the ref", carol, locks.Ref, "", "can only be removed with a token for the REST API")
	one("removal of the ref by the owner", owner, locks.Ref, "", "")
	one("ref below", carol, locks.Ref+"/x", second, "no ref can be below")
	b.refs[locks.Ref] = bad
	one("repair of an invalid file", carol, locks.Ref, store(first), "")
}
