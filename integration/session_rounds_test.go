package integration

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// rounds creates a session that another machine can resume, and sets a long round-trip time to its remotes.
type rounds struct {
	w          *world
	origin     served
	remote     *carried
	checkpoint control.CheckpointReply
}

const (
	// slowLine is a round-trip time that is longer than the delay between a response and the next request.
	slowLine = 600 * time.Millisecond
	// slowestLine is a round-trip time that is longer than this delay on a busy machine, too.
	slowestLine = 8 * slowLine
)

func newRounds(t *testing.T, thin bool, rtt time.Duration) *rounds {
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
	f.origin.SetRTT(rtt)
	f.remote.server.SetRTT(rtt)
	return f
}

// roundLimits are the maximum numbers of consecutive round trips, and of requests to each remote.
type roundLimits struct{ row, remote, origins int }

// want checks how many consecutive round trips a command has waited for, and how many requests it sent. The delays of a
// busy machine look like round trips if they are longer than rtt. So want returns false, without a check, if there are
// too many round trips with an rtt that is less than slowestLine.
func (f *rounds) want(t *testing.T, rtt time.Duration, most roundLimits) bool {
	t.Helper()
	session, origin := f.remote.server.Log(), f.origin.Log()
	n := gittest.InARow(rtt, session, origin)
	if n > most.row && rtt < slowestLine {
		t.Logf("%d round trips in a row of %v: measured again with twice the time", n, rtt)
		return false
	}
	if s, o := len(session.Requests()), len(origin.Requests()); n > most.row || s > most.remote || o > most.origins {
		t.Errorf("%d round trips in a row, %d requests to the session remote, %d to the mounted one, want at most %d, %d, and %d:\n%s\n%s",
			n, s, o, most.row, most.remote, most.origins, session, origin)
	}
	if _, blobs := origin.Blobs(); blobs > 0 {
		t.Errorf("%d contents were fetched from the mounted remote, want none", blobs)
	}
	return true
}

// A machine without any data can resume or fork another machine's session after a few round trips.
func TestSessionFromAfarInFewRoundTrips(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		thin, fork bool
		most       roundLimits
	}{
		{"fork, thin", true, true, roundLimits{5, 5, 2}},
		{"fork, shared", false, true, roundLimits{5, 6, 2}},
		{"resume, thin", true, false, roundLimits{5, 6, 2}},
		{"resume, shared", false, false, roundLimits{5, 6, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			once := func(rtt time.Duration) bool {
				f := newRounds(t, c.thin, rtt)
				o := f.w.elsewhere()
				args := []string{"session", "resume", f.remote.arg + "#session=work"}
				if c.fork {
					args = []string{"session", "fork", f.remote.arg + "#session=work@" + f.checkpoint.ID}
				}
				dir := o.place("m")
				o.ok(append(args, dir, "--prefetch", "none", "--history", "none", "--checkpoint", "off")...)
				judged := f.want(t, rtt, c.most)
				f.origin.SetRTT(0)
				f.remote.server.SetRTT(0)
				f.w.wantFile(dir+"/one", "one\ntwo\n")
				o.ok("unmount", dir)
				return judged
			}
			for rtt := slowLine; !once(rtt); rtt *= 2 {
			}
		})
	}
}
