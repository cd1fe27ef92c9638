// Package moves changes the working tree of a mount on request: it switches to another commit, restores files of a checkpoint, and
// merges a checkpoint of another session. A journal in the home of the mount, its directory below the state directory, makes a
// successor of a killed process finish a change.
package moves

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/worktree"
)

// Mover changes the working tree of one mount. The mount sets the exported fields before it is served; they are constant after that. The
// methods are safe for concurrent use.
type Mover struct {
	Mount         *catalog.Mounted // directories, session, agent and objects of the mount
	Tree          *worktree.Tree
	Server        *fuse.Server       // serves the kernel's requests
	View          *fetch.View        // converted contents of the trees
	Local         *fetch.Local       // objects in the git directory of the mount
	SessionRemote *thin.Remote       // session remote; nil: none
	Follow        bool               // the mount follows its branch on the remote
	Reads         bool               // contents may be fetched that no process has read yet
	Handover      *takeover.Handover // state for a successor

	State   string // path of the state directory
	Log     *zap.Logger
	Catalog *catalog.Catalog
	Remotes *remotes.Remotes
	HomeOf  func(of string) (origin.Home, error) // finds a session on this host by name or directory

	// Ready waits until the git directory was created, and returns it. It returns fault.ErrNoGitDir if there is none.
	Ready     func(ctx context.Context) (*gitdir.Dir, error)
	Base      func() object.ID     // returns the base tree of the mount
	Redirects func() []string      // returns the paths that are stored outside of the mount
	Show      func(tree object.ID) // sets the tree that prefetch uses

	journal *checkout.Journal // changes that are not finished; set by Finish

	mu       sync.Mutex
	restored *restored // finished restore whose reply no caller has received yet; nil: none; guarded by mu
}
