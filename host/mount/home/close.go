package home

import (
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/trash"
)

// Outcome describes what remains of the user's changes after a mount has ended.
type Outcome struct {
	Unsaved statedir.Unsaved // changes that were kept; zero if there were none
	Err     error            // error because of which some changes are not stored in the home

	Trashed string    // name of the session that was moved to the trash; "" if none was
	Until   time.Time // time at which the session, kept or in the trash, expires; zero if it does not expire
}

// End describes a mount that has ended: which steps of its start were completed, the changes in the home, and what to
// do with them.
type End struct {
	ReadOnly bool // whether the mount could not change its files
	Opened   bool // whether the working tree was opened
	Served   bool // whether the mount was served

	Left statedir.Unsaved // changes in the home
	Err  error            // error because of which some changes are not stored

	Returns bool      // whether the daemon mounts the session again when it starts next
	Discard bool      // whether to delete the session
	Remove  bool      // whether to delete the session without moving it to the trash
	Until   time.Time // time at which a session that is kept expires; zero if it never expires
}

// Close keeps the locked home of an ended mount, moves it to the trash, or removes it, and releases the lock. If the
// mount was never opened, a session that existed before is unchanged.
//
// A session that has no changes, but files that were carried from another session, may have the last copies of these
// files. So it is moved to the trash instead of being removed. If it returns, it is kept, because a new home would not
// have the files.
func (h *Home) Close(e End) Outcome {
	writable := h.of.Session != "" && !e.ReadOnly
	switch {
	// The home is removed in three cases: the mount has no session, the session is deleted without the trash, or the
	// session is discarded and has no changes.
	case h.of.Session == "" || writable && e.Remove, writable && e.Discard && e.Err == nil && !e.Left.Any():
		h.remove()
		return Outcome{}
	// This mount cannot have changed the home, so the home is left as it was.
	case e.ReadOnly, !e.Opened && !h.Created:
		h.Release()
		return Outcome{Err: e.Err}
	// The home is also removed if it was never in use, or contains no changes of the user.
	case !e.Opened, h.Created && !e.Served, e.Err == nil && !e.Left.Any():
		h.remove()
		return Outcome{Err: e.Err}
	}
	o := Outcome{Unsaved: e.Left, Err: e.Err, Until: e.Until}
	h.Record.Made = nil // the mount removes the directories that this field lists
	h.Record.Counted = o.Err == nil && !e.Left.OnlyCarried()
	h.Record.Changed, h.Record.Bytes = e.Left.Paths, e.Left.Bytes
	h.Record.Until = e.Until
	if err := h.Save(); err != nil { // if the counts cannot be saved, they are computed when a client lists the session
		h.of.Log.Warn("count a session's changes", zap.String("home", h.Dir), zap.Error(err))
	}
	if o.Err != nil {
		h.of.Log.Error("store the state of an unmounted session", zap.String("home", h.Dir), zap.Error(o.Err))
	}
	if o.Err == nil && (e.Discard || e.Left.OnlyCarried() && !e.Returns) {
		// The lock file of a home in the trash must not name a mount.
		h.Sign("")
		var at time.Time
		if at, o.Err = h.ToTrash(h.of.Session, time.Now()); o.Err != nil {
			return o
		}
		h.of.Log.Info("moved session to the trash", zap.String("session", h.of.Session), zap.Int64("changed", e.Left.Paths))
		return Outcome{Trashed: h.of.Session, Until: at.Add(trash.Keep)}
	}
	h.Release()
	return o
}

// remove removes the home. A failure is only logged.
func (h *Home) remove() {
	if err := h.Remove(); err != nil {
		h.of.Log.Warn("remove mount's directory", zap.Error(err))
	}
}

// Abandon ends the home of a mount whose start the predecessor has not completed. lock is the lock file that the
// predecessor held. If remove is false, a home with changes is kept.
func (h *Home) Abandon(lock *os.File, remove bool) {
	t, err := h.of.Homes.TakeOver(h.of.ID, h.of.Dir, lock)
	switch {
	case err != nil:
		lock.Close()
	case remove:
		h.Home = t
		h.remove()
	default:
		t.Tidy()
	}
}
