package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// TestReceipts checks that the commands print on stderr what is not as it was, once, and nothing with --quiet and in
// the text of --json.
func TestReceipts(t *testing.T) {
	a, s, f := newWork(t)
	receipt := control.NewReceipt([]control.LeftOut{{Path: "k", Why: "filter"}, {Path: ".env", Why: "secret"},
		{Path: "id\x1b", Why: "secret"}, {Path: "core", Why: "size"}, {Path: "s", Why: "type"},
		{Path: "a/", Why: "ignored"}, {Path: "b/", Why: "ignored"},
		{Path: "c/", Why: "ignored"}, {Path: "d/", Why: "ignored"}}, 9, []string{"lib"})
	line := "1 refused by a required filter (k), 2 secrets (.env, id ), 1 too large (core), " +
		"1 no file or link (s), 4 ignored (a/, b/, c/, ...), 1 submodule (lib)\n"
	s.set(func() {
		s.list = []control.SessionInfo{{SessionStatus: control.SessionStatus{Name: "old"}, Remote: "/r", Dir: a.dir + "/old"}}
		s.restore = control.RestoreReply{Dir: a.dir + "/app", Checkpoint: control.Checkpoint{ID: checkpointA}, Receipt: receipt}
	})
	f.set(func() {
		f.mount = func(_ context.Context, r control.MountRequest, _ func(control.Progress)) (control.MountReply, error) {
			return control.MountReply{Dir: r.Dir, Remote: r.Remote, Session: "old", Files: 1, Receipt: receipt}, nil
		}
	})
	for _, args := range []string{"mount /r old", "session resume old", "session undelete old --mount"} {
		if r := a.run(strings.Fields(args)...); r.code != 0 || r.stderr != "artifactfs: not carried: "+line {
			t.Errorf("%s: got %+v", args, r)
		}
		r := a.run(append(strings.Fields(args), "--json")...)
		var reply struct {
			Receipt control.Receipt
			Mount   struct{ Receipt control.Receipt }
		}
		if err := json.Unmarshal([]byte(r.stdout), &reply); err != nil || r.stderr != "" ||
			reply.Receipt.Ignored+reply.Mount.Receipt.Ignored != 4 {
			t.Errorf("%s --json: got %+v, %v", args, r, err)
		}
	}
	// The directory of the fake is no mount, so run prints the receipt and does not start the command.
	if r := a.run("run", "/r", "--", "true"); !strings.Contains(r.stderr, "artifactfs: not carried: "+line) {
		t.Errorf("run: got %+v", r)
	}
	if r := a.run("session", "restore", "@", "-C", "app"); r.code != 0 || r.stderr != "artifactfs: not restored: "+line {
		t.Errorf("session restore: got %+v", r)
	}
	s.set(func() { s.restore.Receipt = nil })
	a.ok("session", "restore", "@", "-C", "app")
}
