package integration

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// rounds creates a session that another machine can resume, and sets a long round-trip time to its remotes.
type rounds struct {
	w          *world
	origin     served
	remote     *carried
	checkpoint control.CheckpointReply
}

// slowLine is a round-trip time that is longer than the delay of a busy machine between a response and the next request.
const slowLine = 600 * time.Millisecond

func newRounds(t *testing.T, thin bool) *rounds {
	w, r := newTravelled(t)
	if thin {
		r = nil
	}
	f := &rounds{w: w, origin: w.serve(gittest.ServerOptions{}), remote: w.sessionRemote("http", r)}
	m := w.bare(f.origin.URL("r.git"), append(f.remote.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "echo one >one && git add one && git commit -qm one && echo two >>one")
	f.checkpoint = m.checkpoint("--sync")
	w.unmount(m)
	f.origin.forget()
	f.remote.server.Log().Reset()
	f.origin.SetRTT(slowLine)
	f.remote.server.SetRTT(slowLine)
	return f
}

// want checks how many consecutive round trips a command has waited for, and how many requests it sent.
func (f *rounds) want(t *testing.T, inARow, ofRemote, ofOrigin int) {
	t.Helper()
	session, origin := f.remote.server.Log(), f.origin.Log()
	n := gittest.InARow(slowLine, session, origin)
	if s, o := len(session.Requests()), len(origin.Requests()); n > inARow || s > ofRemote || o > ofOrigin {
		t.Errorf("%d round trips in a row, %d requests to the session remote, %d to the mounted one, want at most %d, %d, and %d:\n%s\n%s",
			n, s, o, inARow, ofRemote, ofOrigin, session, origin)
	}
	if _, blobs := origin.Blobs(); blobs > 0 {
		t.Errorf("%d contents were fetched from the mounted remote, want none", blobs)
	}
}

// A machine without any data can resume or fork another machine's session after a few round trips.
func TestSessionFromAfarInFewRoundTrips(t *testing.T) {
	for _, c := range []struct {
		name                 string
		thin, fork           bool
		row, remote, origins int
	}{
		{"fork, thin", true, true, 5, 5, 2},
		{"fork, shared", false, true, 5, 6, 2},
		{"resume, thin", true, false, 5, 6, 2},
		{"resume, shared", false, false, 5, 6, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newRounds(t, c.thin)
			o := f.w.elsewhere()
			args := []string{"session", "resume", f.remote.arg + "#session=work"}
			if c.fork {
				args = []string{"session", "fork", f.remote.arg + "#session=work@" + f.checkpoint.ID}
			}
			dir := o.place("m")
			o.ok(append(args, dir, "--prefetch", "none", "--history", "none", "--checkpoint", "off")...)
			f.want(t, c.row, c.remote, c.origins)
			f.origin.SetRTT(0)
			f.remote.server.SetRTT(0)
			f.w.wantFile(dir+"/one", "one\ntwo\n")
			o.ok("unmount", dir)
		})
	}
}
