// Package moves changes the working tree of a mount as a request demands: it switches to another commit, restores files of a
// checkpoint, or merges a checkpoint of another session. A journal in the home of the mount (its directory below the state
// directory) allows a successor to complete a change if the process is killed.
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

// Mover changes the working tree of one mount. The exported fields are set before the mount is served, and do not change after
// that. The methods may be called from any goroutine.
type Mover struct {
	Mount    *catalog.Mounted // directories, session, agent and objects of the mount
	Tree     *worktree.Tree
	Server   *fuse.Server       // serves the kernel's requests
	Contents *contents.Contents // what the mount reads
	Follow   bool               // whether the mount follows its branch on the remote
	Reads    bool               // whether contents may be prefetched; if false, only contents that a process reads are fetched
	Handover *takeover.Handover // stores state for a successor
	Events   *inotify.Raiser    // raises inotify events for changed paths; nil: none

	State   string // path of the state directory
	Log     *zap.Logger
	Catalog *catalog.Catalog
	Remotes *remotes.Remotes
	HomeOf  func(of string) (origin.Home, error) // returns the home of a session on this host, given its name or a path in its mount

	// Ready waits until the mount has tried to create the git directory, and returns the directory. It returns
	// fault.ErrNoGitDir if the attempt has failed.
	Ready     func(ctx context.Context) (*gitdir.Dir, error)
	Redirects func() []string // returns the redirects, whose files are stored outside of the mount
	// Refuses returns a *locks.HeldError if a path must not be changed, because another session has locked it.
	Refuses func(path string) error

	journal   atomic.Pointer[checkout.Journal] // records changes that are not complete; set by Finish
	finishing sync.Mutex                       // held while changes that could not be taken back are finished, so that each is finished once

	mu sync.Mutex
	// restored is a completed restore whose reply no client has received yet, or nil. mu protects this field.
	restored *restored
}
