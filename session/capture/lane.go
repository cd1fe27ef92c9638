package capture

import (
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// segmentLength returns the number of checkpoints in the segment of p, from the first checkpoint of the segment to p.
func (c *Capturer) segmentLength(p session.Checkpoint) (int, error) {
	n := 0
	for at := p.Commit; !at.IsZero(); n++ {
		_, content, err := c.o.Repo.Get(at, object.MaxCommitSize)
		if err != nil {
			return n, err
		}
		if at, err = session.CheckpointParent(c.format, content); err != nil {
			return n, err
		}
	}
	return n, nil
}

// follow updates c.last if gc has removed older checkpoints of the segment. gc then rewrites the other checkpoints of
// the segment, so the newest checkpoint has the same id, but another commit.
func (c *Capturer) follow() error {
	last, have := c.Last()
	if !have {
		return nil
	}
	tip, err := c.o.Repo.Ref(session.SegmentRef(last.Session, last.Lane, last.Segment))
	if err != nil || tip == last.Commit || tip.IsZero() {
		return err
	}
	now, err := c.o.Repo.CheckpointAt(tip)
	if err != nil || now.ID != last.ID {
		return err
	}
	count, err := c.segmentLength(now)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.last, c.count = &now, count
	c.mu.Unlock()
	// The memory stays valid, because the rewritten checkpoint has the same tree.
	c.mem.Checkpoint = now.Commit.String()
	return nil
}
