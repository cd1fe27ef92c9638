// Package contents has what a mount reads: the store of its remote, the objects of its session, the snapshot of the
// mounted commit, and the view of its files.
package contents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/filters"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/mount/profiles"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Contents provides the data that one mount reads: files, directories and objects. Its parts are opened in this order,
// before the working tree:
//
//	OpenStore     the store of the remote, which mounts share
//	OpenObjects   the objects in the home, and the session remotes
//	SetSnapshot   the mounted commit
//	OpenView      the contents of files, converted as git does when it checks a file out
//
// As long as the mount is being prepared, only the goroutine that prepares it may use the Contents. After that, the
// exported fields do not change until Close, and the methods may be called from any goroutine.
type Contents struct {
	Store    *fetch.Store       // store of the remote; nil: not opened yet
	Before   fetch.Stats        // statistics of the store at the time when it was opened
	Listing  *fetch.Listing     // list of the remote's refs; nil: not requested by the start of the mount
	Objects  Objects            // objects of the mount that the store can read, and session remotes
	View     *fetch.View        // returns the contents of files; nil: not opened yet
	Settings gitdir.Checkout    // git's settings when the mount was made
	Modes    worktree.Modes     // types and permissions of unchanged files
	Filters  *filters.Filters   // programs that convert contents
	Shown    *Shown             // tree whose contents prefetch and readahead fetch
	Profiles *profiles.Profiles // records which files are read, and finds those to prefetch; nil: no read profile
	// SameSizes is true if the sizes of converted contents that the last mount of the session knew are still valid.
	SameSizes bool

	of      Owner
	release func() // releases the store; nil until it is opened

	mu   sync.Mutex
	snap *fetch.Snapshot // snapshot of the mounted commit; protected by mu
}

// Owner describes the mount to which Contents belong.
type Owner struct {
	ID      string                // name of the home
	Dir     string                // root directory of the mount
	State   string                // path of the state directory
	Since   time.Time             // time at which the mount was started
	Request *control.MountRequest // the request for the mount; it may be read after the home was locked
	Log     *zap.Logger
}

// New returns the Contents of a mount, of which nothing is opened yet.
func New(of Owner) *Contents { return &Contents{of: of} }

// OpenStore opens the store of the mounted remote. l is the login for the remote.
func (c *Contents) OpenStore(all *remotes.Remotes, l *remotes.Login) (err error) {
	if c.Store, c.release, err = all.Store(*c.of.Request, l); err == nil {
		c.Before = c.Store.Stats()
	}
	return err
}

// Close closes everything that was opened. The fields remain set, because requests that have begun before may still use
// them.
func (c *Contents) Close() error {
	if c.View != nil {
		c.Filters.Close()
		c.View.Close()
	}
	err := c.Objects.close()
	if c.release != nil {
		c.release()
	}
	return err
}

// Reset closes everything that was opened, so that it can be opened again.
func (c *Contents) Reset() {
	_ = c.Close()
	c.View, c.Filters, c.release, c.Store, c.Objects = nil, nil, nil, nil, Objects{}
	c.SetSnapshot(nil)
}

// SetSnapshot sets the snapshot of the mounted commit.
func (c *Contents) SetSnapshot(snap *fetch.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap = snap
}

// Snapshot returns the snapshot of the mounted commit, or nil if it is not set yet. The method Whole may replace the
// snapshot later.
func (c *Contents) Snapshot() *fetch.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snap
}

// Whole waits until all trees of the mounted commit are fetched, and returns its snapshot. If some trees could not be
// fetched, it fetches the commit again, replaces the snapshot, and waits for the trees of the new snapshot.
func (c *Contents) Whole(ctx context.Context) (*fetch.Snapshot, error) {
	snap := c.Snapshot()
	err := snap.Wait(ctx)
	if err == nil || ctx.Err() != nil {
		return snap, err
	}
	var again *fetch.Snapshot
	err = c.Store.Retry(ctx, func() (err error) {
		if again, err = c.Store.Acquire(ctx, snap.Commit.String()); err != nil {
			return err
		}
		again.Ref, again.Tree, again.Time = snap.Ref, snap.Tree, snap.Time
		c.SetSnapshot(again)
		return again.Wait(ctx)
	})
	return again, err
}

// Deepen fetches the history of the mounted commit. Then it sets the refs, the default branch and the list of shallow
// commits in the git directory to those of the fetched history. listing is the list of the remote's refs, if it was
// requested already. hurried reports whether a program waits for the history.
func (c *Contents) Deepen(ctx context.Context, git *gitdir.Dir, listing *fetch.Listing, hurried func() bool) error {
	if err := c.Store.Deepen(ctx, listing, hurried); err != nil {
		return err
	}
	return errors.Join(git.SetRefs(c.Store.Refs()), git.SetDefault(c.Store.DefaultBranch()),
		git.SetShallow(c.Store.Boundary()))
}

// ReadRoot fetches the root tree in the background. The channel receives one value: nil, or the error of the fetch.
func (c *Contents) ReadRoot(ctx context.Context) <-chan error {
	ready := make(chan error, 1)
	root := c.Snapshot().Tree
	go func() {
		_, err := c.View.Tree(ctx, root)
		ready <- err
	}()
	return ready
}

// OddPaths returns notes for the user about the paths of the tree that the mount does not show.
func (c *Contents) OddPaths() []string {
	notes, all := c.View.OddPaths()
	if more := all - len(notes); more > 0 {
		notes = append(notes, fmt.Sprintf("%d further paths are not shown", more))
	}
	return notes
}

// RepoOptions returns the options of a repository of the session called name with the object format f. The repository
// uses the store's object directory as an alternate (a further directory in which git searches objects).
func (c *Contents) RepoOptions(f object.Format, name string) session.RepoOptions {
	return session.RepoOptions{
		Format: f, Session: name, Remote: c.Store.URL(), Borrow: []string{filepath.Join(c.Store.GitDir(), "objects")},
		Log: c.of.Log.With(zap.String("session", name)),
	}
}

// Gitlink returns the commit of the gitlink (the tree entry of a submodule) at the path p of the base tree, or false if
// there is no gitlink at p.
func (c *Contents) Gitlink(ctx context.Context, p string) (object.ID, bool, error) {
	e, err := treediff.EntryAt(ctx, c.View.Tree, c.Snapshot().Tree, p)
	return e.ID, e.Mode == object.ModeGitlink, err
}

// RootFile returns the contents of the file name in the root of the base tree, or nil if the tree has no such file. It
// returns an error if the file is larger than limit bytes.
func (c *Contents) RootFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	e, err := treediff.EntryAt(ctx, c.View.Tree, c.Snapshot().Tree, name)
	if err != nil || e.Mode == 0 {
		return nil, err
	}
	// A symbolic link is treated as a missing file.
	if !e.Mode.IsBlob() || e.Mode == object.ModeSymlink {
		return nil, errors.New("it is not a file")
	}
	content, err := c.View.Open(ctx, fetch.Blob{ID: e.ID, Path: name})
	if err != nil {
		return nil, err
	}
	defer content.Release()
	if content.Size() > limit {
		return nil, fmt.Errorf("file has %d bytes, limit is %d", content.Size(), limit)
	}
	return io.ReadAll(io.NewSectionReader(content, 0, content.Size()))
}
