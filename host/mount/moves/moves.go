// Package moves changes the working tree of a mount as a request demands: it switches to another commit, restores files
// of a checkpoint, or merges a checkpoint of another session. A journal in the home of the mount allows a successor to
// complete a change if the process is killed.
package moves

import (
	"context"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/inotify"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/worktree"
)

// Mover changes the working tree of one mount. The exported fields are set before the mount is served, and do not
// change after that. The methods may be called from any goroutine.
type Mover struct {
	Mount    *catalog.Mounted // the mount, with its session and agent
	Tree     *worktree.Tree
	Server   *fuse.Server       // serves the kernel's requests
	Contents *contents.Contents // files and directories as the mount reads them
	Follow   bool               // whether the mount follows its branch on the remote
	// whether contents may be prefetched; if false, only contents that a process reads are fetched
	Reads    bool
	Handover *takeover.Handover // passes state to a successor
	Events   *inotify.Raiser    // raises inotify events for changed paths; nil if it raises none

	State   string // path of the state directory
	Log     *zap.Logger
	Catalog *catalog.Catalog
	Remotes *remotes.Remotes
	// returns the home of a session on this host; the parameter is the session's name or a path in its mount
	HomeOf func(of string) (origin.Home, error)

	// Ready waits until the mount has tried to create the git directory, and returns the directory. It returns
	// fault.ErrNoGitDir if the attempt has failed.
	Ready     func(ctx context.Context) (*gitdir.Dir, error)
	Redirects func() []string // returns the redirects, whose files are stored outside of the mount
	// Refuses returns a *locks.HeldError if a path must not be changed, because another session has locked it.
	Refuses func(path string) error

	journal atomic.Pointer[checkout.Journal] // records changes that are not complete; set by Finish
	// held while changes that could not be undone are completed, so that each is completed once
	finishing sync.Mutex

	mu sync.Mutex
	// restored is a completed restore whose reply no client has received yet, or nil; protected by mu.
	restored *restored
}
