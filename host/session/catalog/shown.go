package catalog

import (
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
)

// Shown converts a checkpoint into the form of a reply.
func (o *opened) Shown(p session.Checkpoint) control.Checkpoint {
	s := control.Checkpoint{
		ID: string(p.ID), Session: p.Session, Lane: p.Lane, Commit: p.Commit.String(), Tree: p.Tree.String(),
		Branch: statedir.ShortRef(p.Branch),
		Reason: string(p.Reason), Message: p.Message, Time: p.Time.In(time.UTC), Prev: string(p.Prev),
		Changed: p.Changed, Bytes: p.Bytes, Excluded: p.Left, Pins: o.pins[p.ID],
		Synced: o.acknowledged != nil && o.acknowledged(p),
	}
	if !p.Head.IsZero() {
		s.Head = p.Head.String()
	}
	return s
}
