package mount

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/follow"
	"github.com/artifactfs/artifactfs/mount/moves"
	"github.com/artifactfs/artifactfs/object"
)

// readyGit returns the git directory of the mount. It waits until the mount has tried to create it, and returns
// fault.ErrNoGitDir if that failed.
func (m *Mount) readyGit(ctx context.Context) (*gitdir.Dir, error) {
	if !m.TriedGit(ctx) {
		return nil, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gitReady {
		return nil, fault.ErrNoGitDir
	}
	return m.git.dir, nil
}

// Moves returns the part of a served mount that switches, restores and merges.
func (m *Mount) Moves() *moves.Mover { return m.moves }

// newMover returns the part of the mount that switches, restores and merges. The tree is open, and the kernel has the mount. The caller
// holds m.mu.
func (m *Mount) newMover() *moves.Mover {
	return &moves.Mover{
		Mount: m.Listed(), Tree: m.tree, Server: m.server, View: m.view, Local: m.local, SessionRemote: m.sessionRemote,
		Follow: m.Request.Follow, Reads: m.Request.Prefetch != control.PrefetchNone, Handover: &m.handover,
		State: m.host.State, Log: m.host.Log, Catalog: m.host.Catalog, Remotes: m.host.Remotes, HomeOf: m.host.Registry.HomeOf,
		Ready: m.readyGit, Base: func() object.ID { return m.snapshot().Tree }, Redirects: m.redirects.Paths, Show: m.shown.show,
	}
}

// newFollower returns the part of the mount that follows the branch. The caller has set m.moves, and holds m.mu.
func (m *Mount) newFollower() *follow.Follower {
	return follow.New(follow.Follower{
		Mount: m.moves.Mount, Moves: m.moves, On: m.Request.Follow, Interval: m.Request.FollowInterval, Log: m.host.Log,
		Snapshot: m.snapshot, Note: m.work.Note,
		Git: func() *gitdir.Dir {
			m.mu.Lock()
			defer m.mu.Unlock()
			if !m.gitReady {
				return nil
			}
			return m.git.dir
		},
	})
}

// Following returns the part of the mount that follows the branch; nil if the mount is not served yet.
func (m *Mount) Following() *follow.Follower {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follower
}
