package mount

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/mount/follow"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/moves"
	"github.com/artifactfs/artifactfs/worktree"
)

// Git returns the part of the mount that makes git commands work, or nil until the working tree is open.
func (m *Mount) Git() *gitside.Side {
	return m.git.Load()
}

// openSide creates the part of the mount that makes git commands work. It is called after the working tree was opened,
// and before the mount is attached to the kernel.
func (m *Mount) openSide() {
	c := m.Listed()
	logins := gitside.Logins{Dir: m.Dir, Remotes: []*transport.Remote{m.contents.Store.Remote()}, Log: m.host.Log}
	if m.contents.Objects.SessionRemote != nil {
		logins.Remotes = append(logins.Remotes, m.contents.Objects.SessionRemote.Remote)
	}
	m.git.Store(gitside.New(&gitside.Side{
		Mount: c, Request: m.Request.MountRequest, Resumed: m.home.Resumed, Events: m.Events,
		Inside: m.attachment.Inside, Contents: m.contents,
		Handover: &m.succession.Handover, Inherited: &m.succession.Inherited, Handler: m.host.Handler, Logins: logins,
		Log: m.host.Log, Listing: m.contents.Listing,
		Index: &gitside.Index{
			Mount: c, Events: m.Events, Tree: m.attachment.Tree, Contents: m.contents,
			Reads:    m.Request.Prefetch != control.PrefetchNone,
			Handover: &m.succession.Handover, Turns: m.host.Turns, Log: m.host.Log,
		},
		Changed: m.attachment.Changed, Redirects: m.attachment.Redirects.Paths,
		Refresh: func(open []worktree.Node) { m.attachment.Server.Refresh(open) },
		Modules: func(ctx context.Context) []gitdir.Submodule {
			if !m.Request.Submodules && m.Parent == nil {
				return nil
			}
			return allModules(ctx, m.contents)
		},
		Finish: func(ctx context.Context, dir *gitdir.Dir) { m.activity.moves.Finish(ctx, dir) },
	}))
}

// Moves returns the part of a served mount that switches to other commits, restores files, and merges sessions.
func (m *Mount) Moves() *moves.Mover { return m.activity.moves }

// Following returns the part of the mount that follows the branch, or nil until the mount is served.
func (m *Mount) Following() *follow.Follower {
	if !m.phase.Served() {
		return nil
	}
	return m.activity.follower
}
