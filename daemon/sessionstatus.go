package daemon

import (
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
)

// sessionStatus returns the status of the mount's session.
func (m *mount) sessionStatus() control.SessionStatus {
	s := m.agent.Status()
	if m.agent.Active() {
		s.SessionRemote = statedir.ShownRemote(m.agent.Options().Remote, m.home.Dir, m.record)
	}
	return s
}

// reportLeft adds to the reply to an unmount the work that is not pushed, the reason, and the refs that were pushed
// under another name because they diverged.
func (m *mount) reportLeft(reply *control.UnmountReply) {
	left := m.agent.Left()
	reply.Pending, reply.Why, reply.DivergedRefs = left.Pending, left.Why, left.Diverged
	if len(left.Diverged) > 0 {
		reply.SessionRemote = statedir.ShownRemote(m.agent.Options().Remote, "", m.record)
	}
}

// lostText returns the note on a ref that was moved after the last checkpoint of a session whose mount died.
func lostText(ref, id string) string {
	return fmt.Sprintf("%s was moved to %.12s after that checkpoint, just before the end; it is kept: git show %.12s",
		statedir.ShortRef(ref), id, id)
}

// shown returns options in the form that is recorded: without secrets, and without settings that hold for one mount
// only.
func shown(o control.SessionOptions) control.SessionOptions {
	// Names of kinds of session remotes contain no secrets.
	switch o.Remote {
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone, "":
	default:
		o.Remote = statedir.WithoutSecrets(o.Remote)
	}
	o.TakeOver = false
	return o
}

// progressOf returns a function that reports the status of a push as progress.
func progressOf(progress func(control.Progress)) func(writeback.Status) {
	return func(st writeback.Status) {
		p := control.Progress{Phase: "sync", Total: int64(st.Pending), Unit: "refs"}
		if st.Seeding {
			p = control.Progress{Phase: "seed", Done: st.Seeded, Total: st.SeedSize, Unit: "bytes"}
		}
		progress(p)
	}
}

// synced reports whether checkpoint p is known to be pushed.
func (o *opened) synced(p session.Checkpoint) bool {
	if o.acknowledged == nil {
		return false
	}
	return o.acknowledged(p)
}

// shown converts a checkpoint for a reply.
func (o *opened) shown(p session.Checkpoint) control.Checkpoint {
	s := control.Checkpoint{
		ID: string(p.ID), Session: p.Session, Lane: p.Lane, Commit: p.Commit.String(), Tree: p.Tree.String(), Branch: statedir.ShortRef(p.Branch),
		Reason: string(p.Reason), Message: p.Message, Time: p.Time.In(time.UTC), Prev: string(p.Prev),
		Changed: p.Changed, Bytes: p.Bytes, Excluded: p.Left, Pins: o.pins[p.ID], Synced: o.synced(p),
	}
	if !p.Head.IsZero() {
		s.Head = p.Head.String()
	}
	return s
}
