package mount

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/trash"
)

// Listed returns the fields of the mount that package catalog needs. It returns nil if m is nil.
func (m *Mount) Listed() *catalog.Mounted {
	if m == nil {
		return nil
	}
	c := &catalog.Mounted{
		Session: m.Session, Record: m.home.Record, Dir: m.Dir, GitDir: m.home.GitDir(),
		Writable: m.Writable(), Agent: m.sessionSide.agent,
		Store: m.contents.Store, Owned: m.contents.Objects.Owned, Request: m.Request.Now,
	}
	if m.home.Locked() {
		c.Home = m.home.Dir
	}
	if m.sessionSide.locking != nil {
		c.Locks, c.Added = m.sessionSide.locking.keeper, m.attachment.Tree.Overlay().Added
	}
	return c
}

// SessionHome returns the home (directory below the state directory) of the mount's session, or of the session of which the mount
// shows one checkpoint. It returns statedir.ErrNoSession if there is no such session, or if the mount is not served yet.
func (m *Mount) SessionHome() (origin.Home, error) {
	switch {
	case !m.Served():
		return origin.Home{}, statedir.ErrNoSession
	// The mount shows one checkpoint of a session. The session itself may not be on this host.
	case m.Request.At != "" && m.home.Record.Checkpoint != nil:
		return origin.Home{
			Dir: m.home.Dir, Session: m.Request.Session, Record: m.home.Record, Mounted: m.Listed(), Carried: m.Request.SessionOptions,
		}, nil
	case m.Session == "":
		return origin.Home{}, statedir.ErrNoSession
	}
	return origin.Home{Dir: m.home.Dir, Session: m.Session, Record: m.home.Record, Mounted: m.Listed(),
		Carried: m.sessionSide.agent.Options()}, nil
}

// outcomeInTrash returns the outcome of a mount whose predecessor has moved the session to the trash, and was killed after that. It is
// empty if the session is not found there.
func outcomeInTrash(homes statedir.Homes, session string) home.Outcome {
	all, err := homes.Trash()
	i := slices.IndexFunc(all, func(t statedir.Trashed) bool { return t.Session == session })
	if err != nil || i < 0 {
		return home.Outcome{}
	}
	return home.Outcome{Trashed: session, Until: all[i].At.Add(trash.Keep)}
}

// discardThere deletes a discarded session on its session remote. It gives up after discardTime. It returns a warning that lists
// the refs which remain on the session remote, or "" if there are none. The field deleteThere calls it once.
func (m *Mount) discardThere() (warning string) {
	o := m.sessionSide.agent.Options()
	repo, _ := m.sessionSide.agent.Repo()
	switch {
	case m.Session == "":
		return ""
	case !m.home.Locked(): // the predecessor was killed after it had removed the home, so the agent was not opened
		o = m.home.Record.Carried
		o.Remote = cmp.Or(m.Request.SessionOptions.Remote, o.Remote)
	// Nothing was pushed, so there is nothing to delete. A successor does not open the repository of a mount that has ended.
	case repo == nil && !m.succession.takenOver():
		return ""
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), discardTime, fault.ErrSlow)
	defer cancel()
	r := m.Request.Now()
	r.Session, r.SessionOptions = m.Session, o
	_, kept, err := m.host.Catalog.DeleteOnRemote(ctx, r, false, time.Now())
	switch {
	case err != nil:
		return "the session remote still has it: " + control.AsError(err).Error()
	case len(kept) > 0:
		return "the session remote keeps " + strings.Join(kept, ", ")
	}
	return ""
}

// discardTime is how long an unmount with --discard waits for the session remote.
const discardTime = 10 * time.Second
