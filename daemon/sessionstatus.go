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

// reportLeft puts into the reply to an unmount what of the work is not on the session remote and why, and which refs are there
// under another name.
func (m *mount) reportLeft(reply *control.UnmountReply) {
	left := m.agent.Left()
	reply.Pending, reply.Why, reply.DivergedRefs = left.Pending, left.Why, left.Diverged
	if len(left.Diverged) > 0 {
		reply.SessionRemote = statedir.ShownRemote(m.agent.Options().Remote, "", m.record)
	}
}

// lostText describes a ref that was moved after the last point of a session that died.
func lostText(ref, id string) string {
	return fmt.Sprintf("%s was moved to %.12s after that checkpoint, just before the end; it is kept: git show %.12s", statedir.ShortRef(ref), id, id)
}

// shown returns options as they go on record: without secrets, and without what counts for one mount only.
func shown(o control.SessionOptions) control.SessionOptions {
	switch o.Remote {
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone, "":
	default:
		o.Remote = statedir.WithoutSecrets(o.Remote)
	}
	o.TakeOver = false
	return o
}

// progressOf tells of a queue at work.
func progressOf(progress func(control.Progress)) func(writeback.Status) {
	return func(st writeback.Status) {
		p := control.Progress{Phase: "sync", Total: int64(st.Pending), Unit: "refs"}
		if st.Seeding {
			p = control.Progress{Phase: "seed", Done: st.Seeded, Total: st.SeedSize, Unit: "bytes"}
		}
		progress(p)
	}
}

// synced says of a point whether the session remote has it.
func (o *opened) synced(p session.Point) bool {
	if o.acknowledged == nil {
		return false
	}
	return o.acknowledged(p)
}

// shownPoint is a point as it is told of.
func (o *opened) shown(p session.Point) control.Checkpoint {
	s := control.Checkpoint{
		ID: string(p.ID), Session: p.Session, Lane: p.Lane, Commit: p.Commit.String(), Tree: p.Tree.String(), Branch: statedir.ShortRef(p.Branch),
		Reason: string(p.Reason), Message: p.Message, Time: p.Time.In(time.UTC), Prev: string(p.Prev), Changed: p.Changed, Bytes: p.Bytes, Excluded: p.Left,
		Pins: o.pins[p.ID], Synced: o.synced(p),
	}
	if !p.Head.IsZero() {
		s.Head = p.Head.String()
	}
	return s
}
