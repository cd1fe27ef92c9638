package mount

import (
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// Listed returns the parts of the mount that package catalog needs, or nil if m is nil.
func (m *Mount) Listed() *catalog.Mounted {
	if m == nil {
		return nil
	}
	c := &catalog.Mounted{
		Session: m.Session, Record: m.home.Record, Dir: m.Dir, GitDir: m.home.GitDir(),
		Writable: m.Writable(), Agent: m.sessionSide.agent,
		Store: m.contents.Store, Owned: m.contents.Objects.Owned, Request: m.Request.Now,
		BeginSeal: func(id string) (*worktree.Seal, error) { return m.attachment.Tree.Overlay().BeginSeal(id) },
	}
	if m.home.Locked() {
		c.Home = m.home.Dir
	}
	if m.sessionSide.locking != nil {
		c.Locks, c.Added = m.sessionSide.locking.keeper, m.attachment.Tree.Overlay().Added
	}
	return c
}

// SessionHome returns the home of the mount's session, or of the session of which the mount shows one checkpoint. It
// returns statedir.ErrNoSession if there is no such session, or if the mount is not served yet.
func (m *Mount) SessionHome() (origin.Home, error) {
	switch {
	case !m.Served():
		return origin.Home{}, statedir.ErrNoSession
	// The mount shows one checkpoint of a session. The session itself may not be on this host.
	case m.Request.At != "" && m.home.Record.Checkpoint != nil:
		return origin.Home{
			Dir: m.home.Dir, Session: m.Request.Session, Record: m.home.Record, Mounted: m.Listed(),
			Carried: m.Request.SessionOptions,
		}, nil
	case m.Session == "":
		return origin.Home{}, statedir.ErrNoSession
	}
	return origin.Home{Dir: m.home.Dir, Session: m.Session, Record: m.home.Record, Mounted: m.Listed(),
		Carried: m.sessionSide.agent.Options()}, nil
}
