// Package catalog answers requests about sessions: sessions that are mounted, sessions of the state directory, and
// sessions of session remotes. Requests about a mounted session use its mount through the struct Mounted.
//
// Lock order: the lock of the home of a session that is not mounted, then the lock of the session repository. The agent
// of a mounted session has separate locks.
package catalog

import (
	"context"
	"errors"
	"io/fs"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/worktree"
)

// Catalog finds sessions and answers requests about them. Its methods are safe for concurrent use.
type Catalog struct {
	State   string // path of the state directory
	Log     *zap.Logger
	Homes   statedir.Homes   // homes of the sessions
	Remotes *remotes.Remotes // opens session remotes
	Mounts  Mounts           // sessions that are mounted
	// Writer returns the identity with which this daemon claims sessions.
	Writer func() (session.Writer, error)
}

// Mounts finds the mounts of this process. Its methods are safe for concurrent use.
type Mounts interface {
	// Mounted returns the served mount of a session, or nil if the session is not mounted. The parameter of is the name
	// of the session or a directory in the mount. Mounted waits until a takeover of the mount has ended. It returns
	// statedir.ErrNoSession if the mount has no session.
	Mounted(ctx context.Context, of string) (*Mounted, error)
	// Writable returns all served mounts that can be written to.
	Writable() []*Mounted
}

// Mounted has the parts of a mount that requests about its session use.
type Mounted struct {
	Session  string          // name of the session; "" if the mount has none
	Record   statedir.Record // record of the session
	Home     string          // home of the session
	Dir      string          // root of the mount
	GitDir   string          // git directory of the mount
	Writable bool            // whether the mount creates the checkpoints of the session
	Agent    *agent.Agent    // makes and pushes the checkpoints
	Store    *fetch.Store    // objects of the mounted remote
	Owned    *fetch.Local    // objects in the session repository; nil if the mount has no session
	// locks of sessions on the session remote; nil if no other session can use the session remote
	Locks *keeper.Keeper
	Added func() []string // returns the paths of files that the base tree does not have, or has with other contents
	// BeginSeal begins a seal of the contents of the working tree, for the share with this ID.
	BeginSeal func(id string) (*worktree.Seal, error)
	// Request returns the request of the mount with its current credentials.
	Request func() control.MountRequest
}

// Status returns the status of the session of the mount.
func (m *Mounted) Status() control.SessionStatus {
	s := m.Agent.Status()
	s.SessionRemote = m.SessionRemote()
	return s
}

// SessionRemote returns the session remote in the form that users see; "": the mount makes no checkpoints.
func (m *Mounted) SessionRemote() string {
	if !m.Agent.Active() {
		return ""
	}
	return statedir.ShownRemote(m.Agent.Options().Remote, m.Home, m.Record)
}

// Contents returns a function that fetches contents of the session that are only on its session remote. It returns nil
// if m is nil or has no session.
func (m *Mounted) Contents(ctx context.Context) func(ids []object.ID) error {
	if m == nil || m.Owned == nil {
		return nil
	}
	return func(ids []object.ID) error { return m.Owned.Provide(ctx, ids, nil) }
}

// OpenMount opens the session of the mount m. It uses the session repository that the agent has opened, or opens the
// repository read-only. The caller closes the result.
func (all *Catalog) OpenMount(m *Mounted) (*opened, error) {
	o := &opened{Session: m.Session, record: m.Record, home: m.Home, mount: m}
	o.Repo, o.queue = m.Agent.Repo()
	if o.Repo == nil { // the mount is read-only, or the agent has not opened the repository
		// The home of a session without a checkpoint contains no repository.
		if !statedir.HasSessionRepo(o.home) {
			return o, nil
		}
		repo, err := all.Homes.OpenSessionRepo(o.home, o.record, false)
		if errors.Is(err, fs.ErrNotExist) { // the agent is creating the repository, whose HEAD is written last
			return o, nil
		}
		if err != nil {
			return nil, err
		}
		o.Repo, o.release = repo, func() { repo.Close() }
	}
	return o, o.read()
}
