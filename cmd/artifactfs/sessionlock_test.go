package main

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func (s *sessionsOf) SessionLocks(_ context.Context, r control.SessionLocksRequest) (control.SessionLocksReply, error) {
	r.Actor = ""
	s.ask(r)
	l := control.SessionLock{ID: checkpointA, Session: "work", Actor: "n\x1b", Host: "h", Pattern: "a",
		Expires: time.Now().Add(-time.Hour), Mine: true}
	other := l
	other.Session, other.Mine, other.Reason = "try", false, "why"
	forced := control.ForcedUnlock{Lock: other, Actor: "m", Host: "i", Reason: "gone"}
	reply := control.SessionLocksReply{Mode: "warn", Locks: []control.SessionLock{l, other},
		Forced: []control.ForcedUnlock{forced}}
	if r.Op != control.LockList {
		reply.Done, reply.Changed = []control.SessionLock{l, other}, []string{"a was changed"}
	}
	return reply, nil
}

func TestSessionLockCommands(t *testing.T) {
	a, s, _ := newWork(t)
	dir := a.dir + "/app"
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
		want           any    // request; nil: none
	}{
		{"lock a sub/*.c -C app --ttl 2m -m why", 0, "locked a until ", `a was changed`,
			control.SessionLocksRequest{Of: dir, Op: "lock", Patterns: []string{"a", "sub/*.c"}, TTL: 2 * time.Minute,
				Reason: "why"}},
		{"lock . -C work", 0, "(" + checkpointA + ")", `says "warn"`,
			control.SessionLocksRequest{Of: dir, Op: "lock", Patterns: []string{"**"}, TTL: time.Hour}},
		{"lock /outside -C app", control.ExitUsage, "", "not in the mount", nil},
		{"lock", control.ExitUsage, "", "PATH|GLOB", nil},
		{"unlock a " + checkpointA + " -C app --force -m gone", 0,
			"unlocked a\nunlocked a, which session try (n @h) had locked\n", "",
			control.SessionLocksRequest{Of: dir, Op: "unlock", Patterns: []string{"a", checkpointA}, Force: true,
				Reason: "gone"}},
		{"unlock a -C app --force", control.ExitUsage, "", "needs -m", nil},
		{"locks -C app", 0, checkpointA + "  try      n @h  expired  a     why\n", "",
			control.SessionLocksRequest{Of: dir, Op: "list"}},
		{"locks --session-remote /srv/r.git", 0, "m@i released a of session try (n @h): gone", "",
			control.SessionLocksRequest{SessionRemote: "/srv/r.git", Op: "list"}},
		{"lock a -C x --session-remote /srv/r.git", 0, "locked a", "",
			control.SessionLocksRequest{Of: "x", SessionRemote: "/srv/r.git", Op: "lock", Patterns: []string{"a"},
				TTL: time.Hour}},
		{"locks -C none", 0, "", "", control.SessionLocksRequest{Of: "none", Op: "list"}},
	} {
		r := a.run(append([]string{"session"}, strings.Fields(c.args)...)...)
		if r.code != c.code || !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) {
			t.Errorf("%s: got exit code %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
			continue
		}
		if c.want != nil {
			s.mu.Lock()
			got := s.asked[len(s.asked)-1]
			s.mu.Unlock()
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got the request %+v, want %+v", c.args, got, c.want)
			}
		}
	}
}
