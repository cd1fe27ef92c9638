package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// The flags of session fork choose which ignored files it has.
func TestSessionForkChoosesIgnoredFiles(t *testing.T) {
	a, s, _ := newWork(t)
	for args, want := range map[string]control.ForkRequest{
		"":                                   {},
		"--ignored all":                      {Ignored: control.IgnoredAll},
		"--without-ignored":                  {Ignored: control.IgnoredNone},
		"--carry .env --carry *.o":           {Carry: []string{".env", "*.o"}},
		"--leave-out build --ignored listed": {Ignored: control.IgnoredListed, LeaveOut: []string{"build"}},
	} {
		a.ok(append([]string{"session", "fork", "copy", "-C", "app"}, strings.Fields(args)...)...)
		if q := last[control.ForkRequest](t, s); q.Ignored != want.Ignored || !slices.Equal(q.Carry, want.Carry) ||
			!slices.Equal(q.LeaveOut, want.LeaveOut) {
			t.Errorf("session fork %s: got the request %+v, want %+v", args, q, want)
		}
	}
	for _, args := range []string{"--ignored some", "--ignored all --without-ignored", "--ignored all --carry x",
		"--without-ignored --leave-out x", "--read-only --ignored all"} {
		r := a.run(append([]string{"session", "fork", "copy", "-C", "app"}, strings.Fields(args)...)...)
		if r.code == 0 {
			t.Errorf("session fork %s: got %+v, want an error", args, r)
		}
	}
}
