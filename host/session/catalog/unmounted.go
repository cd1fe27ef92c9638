package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Unmounted returns the status of the sessions of a state directory that have changes and are not mounted.
func Unmounted(state string) ([]control.MountStatus, error) {
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	ids, _, err := h.IDs()
	if err != nil {
		return nil, err
	}
	var kept []control.MountStatus
	ctx, cancel := context.WithTimeout(context.Background(), statedir.ListTime)
	defer cancel()
	for _, id := range ids {
		t, err := h.WaitExisting(ctx, id)
		if err != nil {
			if errors.Is(err, disk.ErrLocked) || errors.Is(err, statedir.ErrBusySession) ||
				errors.Is(err, statedir.ErrNoSession) {
				continue
			}
			// On a read-only file system, the home cannot be locked, but the record may contain the counts.
			if r, readErr := statedir.ReadRecord(filepath.Join(h.Dir(), id)); errors.Is(err, unix.EROFS) &&
				readErr == nil && r.Counted {
				// No process can have mounted the session, because a mount must write to its home.
				kept = append(kept, unmountedStatus(id, r, statedir.Unsaved{Paths: r.Changed, Bytes: r.Bytes}))
				continue
			}
			return kept, fmt.Errorf("list sessions: %w", err)
		}
		r, w, err := t.Inspect()
		carried := carriedStatus(t, r)
		t.Unlock()
		switch {
		// If the session is damaged, its record may lack the name of the session.
		case err != nil:
			r.Session = id
			s := unmountedStatus(id, r, statedir.Unsaved{Paths: -1})
			s.Error = err.Error()
			kept = append(kept, s)
		case w.Any():
			s := unmountedStatus(id, r, w)
			s.Session, s.Head = carried, cmp.Or(gitdir.HeadNameAt(filepath.Join(t.Dir, "git")), r.FirstHead())
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// unmountedStatus returns the status of a session that is not mounted, from the name of its home, its record, and its
// unsaved changes.
func unmountedStatus(id string, r statedir.Record, w statedir.Unsaved) control.MountStatus {
	return control.MountStatus{
		ID: id, Dir: r.Dir, Remote: r.Remote, Ref: statedir.ShortRef(r.Ref), Commit: r.Commit, State: control.StateUnmounted,
		History: control.HistoryShallow, Overlay: control.OverlayStatus{Changed: w.Paths, Bytes: w.Bytes},
		Session: control.SessionStatus{Name: r.Session},
	}
}

// Discard moves a session that is not mounted to the trash of a state directory, where it stays until the time until.
// It returns a statedir.InUseError if the session is mounted, and an error of type *control.Error if a hold applies to
// it. It does not delete the session on a session remote; Elsewhere reports whether there is one.
func Discard(state, session string) (until time.Time, err error) {
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	if t, err := h.LockExisting(session); err == nil {
		var held error
		if r, err := statedir.ReadRecord(t.Dir); err == nil {
			held = onHold(t, r)
		}
		if t.Unlock(); held != nil {
			return until, fault.ExplainDelete("delete session", session, held)
		}
	}
	return h.Discard(session, true)
}

// Elsewhere reports whether a session that is not mounted has a session remote other than the embedded one. Only a
// daemon can delete the session on that session remote.
func Elsewhere(state, session string) bool {
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	r, err := statedir.ReadRecord(filepath.Join(h.Dir(), session))
	at, _ := remotes.SessionURL(control.MountRequest{Remote: r.Remote, SessionOptions: r.Carried})
	return err == nil && at != ""
}
