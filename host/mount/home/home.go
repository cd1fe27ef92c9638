// Package home has the home of a mount (its directory below the state directory), and the record of the session that is
// stored in it.
package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// Home is the home of one mount. Until Enter or TakeOver has locked it, the embedded pointer is nil, and only Locked
// and the exported fields may be used.
//
//	New -> unlocked -- Enter, TakeOver --> locked -- Close ---> the directory is released or gone
//	          ^                              |
//	          +-- Drop, GiveBack ------------+
//
// As long as the mount is being prepared, only the goroutine that prepares it may use the home. After that, the fields
// do not change until the mount ends. After Close they can still be read.
type Home struct {
	*statedir.Home                 // locked directory; nil while it is unlocked
	Record         statedir.Record // record of the session; Save stores it in the directory
	Resumed        bool            // whether the session already existed before the mount
	OtherOwner     bool            // whether the files of the session belong to another user than the request names

	of Owner
}

// Owner describes the mount to which a home belongs.
type Owner struct {
	Homes   statedir.Homes // homes of all mounts
	ID      string         // name of the home
	Session string         // name of the session; "" if the mount has none
	Dir     string         // root directory of the mount
	Since   time.Time      // time at which the mount was started; a takeover does not change it
	Log     *zap.Logger
}

// New returns the home of a mount, which is unlocked.
func New(of Owner) *Home { return &Home{of: of} }

// Locked reports whether this process holds the lock of the home.
func (h *Home) Locked() bool { return h.Home != nil }

// Since returns the time at which the mount was started.
func (h *Home) Since() time.Time { return h.of.Since }

// GitDir returns the path of the git directory in the home. The file ".git" in the root of the mount refers to this
// path.
func (h *Home) GitDir() string { return filepath.Join(h.Dir, "git") }

// GitFile returns the contents of the file ".git" in the root of the mount, in the format of gitrepository-layout(5).
func (h *Home) GitFile() string { return "gitdir: " + h.GitDir() + "\n" }

// RepoDir returns the path of the session repository in the home.
func (h *Home) RepoDir() string { return filepath.Join(h.Dir, statedir.SessionRepoName) }

// Save stores the record in the home.
func (h *Home) Save() error { return h.Record.Save(h.Dir) }

// Enter locks the home, and reads the record of the session in it. remote is the URL of the mounted remote. If there is
// a session to resume, Enter sets Resumed, and sets the owner of the files in the request r.
func (h *Home) Enter(ctx context.Context, r *control.MountRequest, remote string) error {
	// If the session does not exist, a read-only mount must not create it.
	if h.of.Session != "" && r.ReadOnly {
		if _, err := os.Lstat(filepath.Join(h.of.Homes.Dir(), h.of.ID)); errors.Is(err, fs.ErrNotExist) {
			return statedir.ErrNoSession
		}
	}
	if err := h.lock(ctx); err != nil || h.of.Session == "" {
		return err
	}
	var err error
	h.Record, err = statedir.ReadRecord(h.Dir)
	switch {
	// Without a record, the changes cannot be assigned to a base commit. They must not be overwritten.
	case errors.Is(err, fs.ErrNotExist) && statedir.HasOverlay(h.Dir):
		return statedir.ErrNoRecord
	case errors.Is(err, fs.ErrNotExist) && r.ReadOnly:
		return statedir.ErrNoSession
	case errors.Is(err, fs.ErrNotExist):
		h.initRecord(r, remote)
		return nil
	case err != nil:
		return err
	case h.Record.Session != h.of.Session:
		return fmt.Errorf("read session %s: %w: record is of session %q", h.Dir, statedir.ErrRecord, h.Record.Session)
	case r.Tenant != "" && h.Record.Tenant != r.Tenant:
		return fault.ErrOtherTenant
	case h.Record.Remote != remote:
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, h.Record.Remote)
	}
	// The git directory of a mount that was promised has not got everything yet.
	_, unfinished := os.Lstat(filepath.Join(h.Dir, statedir.NewGitName))
	// A large log is not read here, because reading it twice would delay the mount.
	if !h.Record.Counted && !r.ReadOnly && (h.Record.Fork.Unfinished ||
		errors.Is(unfinished, fs.ErrNotExist) && !statedir.HasLargeLog(h.Dir)) {
		if _, w, err := h.Inspect(); err == nil && !w.Any() {
			return h.recreate(ctx, r, remote)
		}
	}
	h.Resumed = true
	// The files keep the owner and the permissions that they had when the session was started.
	h.OtherOwner = r.UID != h.Record.UID || r.GID != h.Record.GID
	r.UID, r.GID, r.Umask = h.Record.UID, h.Record.GID, h.Record.Umask
	return nil
}

// lock locks the home, and creates it if it does not exist.
func (h *Home) lock(ctx context.Context) (err error) {
	h.Home, err = h.of.Homes.Lock(ctx, h.of.ID, h.of.Dir)
	return err
}

// initRecord sets those fields of the record of a new session that are known before its base commit is.
func (h *Home) initRecord(r *control.MountRequest, remote string) {
	h.Record = statedir.Record{
		Session: h.of.Session, Tenant: r.Tenant, Remote: remote, Dir: h.of.Dir, Asked: r.Ref,
		UID: r.UID, GID: r.GID, Umask: r.Umask, Began: h.of.Since, Checkout: checkout(r.NewGit),
	}
	h.Created = true
}

// checkout returns the settings for the field Checkout of the record of a session whose git directory gets g.
func checkout(g *control.NewGit) (list []gitdir.Setting) {
	if g == nil {
		return nil
	}
	if g.Called != "" {
		list = append(list, gitdir.Setting{Name: "clone.defaultremotename", Value: g.Called})
	}
	for _, s := range g.Settings {
		if gitdir.InCheckout(s.Name) {
			list = append(list, gitdir.Setting(s))
		}
	}
	return list
}

// recreate replaces the home by a new one, because a process that was killed has left a home without changes.
func (h *Home) recreate(ctx context.Context, r *control.MountRequest, remote string) error {
	if err := h.Remove(); err != nil {
		h.Home = nil
		return err
	}
	if err := h.lock(ctx); err != nil {
		return err
	}
	h.initRecord(r, remote)
	return nil
}

// TakeOver takes over the home, with the lock that the predecessor held, which is a part of in. If the supervisor does
// not have the descriptor of the lock, TakeOver locks the home and stores the descriptor with k.
func (h *Home) TakeOver(ctx context.Context, in takeover.Inherited, k *takeover.Handover) (err error) {
	if lock := in.File(takeover.PartLock); lock != nil {
		h.Home, err = h.of.Homes.TakeOver(h.of.ID, h.of.Dir, lock)
		if err == nil {
			in.Take(takeover.PartLock)
		}
		return err
	}
	// The predecessor has failed to send the descriptor of the lock to the supervisor.
	if err = h.lock(ctx); err == nil {
		k.Keep(takeover.PartLock, h.LockFile)
	}
	return err
}

// GiveBack sets the home to unlocked without releasing the lock, which becomes a part of in again, so that TakeOver can
// be repeated.
func (h *Home) GiveBack(in takeover.Inherited) {
	if h.Locked() {
		in.Put(takeover.PartLock, h.LockFile)
	}
	h.Home = nil
}

// Drop releases the lock, if the home is locked. The home remains on disk.
func (h *Home) Drop() {
	if h.Locked() {
		h.Release()
	}
	h.Home = nil
}

// Finish stores in the record that a fork is complete and about to be mounted.
func (h *Home) Finish() error {
	if !h.Record.Fork.Unfinished {
		return nil
	}
	h.Record.Fork.Unfinished = false
	return h.Save()
}

// Occupy stores in the record that the session is mounted at the directory of the mount, and that its changes are not
// counted. made lists the directories that were created for the mount point. Occupy returns the directories that the
// mount must remove when it ends: those in made, or those of an earlier mount that was killed.
func (h *Home) Occupy(made []string) ([]string, error) {
	if h.Record.Dir == h.of.Dir && len(made) == 0 {
		made = h.Record.Made
	}
	// The counts in the record become invalid with the first change.
	h.Record.Dir, h.Record.Made, h.Record.Counted = h.of.Dir, made, false
	return made, h.Save()
}
