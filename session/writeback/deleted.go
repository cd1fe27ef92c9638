package writeback

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// DeletedError means that another host has deleted the session on the session remote. Nothing is pushed until the
// session is restored there, because a push would create the session again.
type DeletedError struct {
	Session string    // name of the session
	Remote  string    // URL of the session remote, without secrets
	Time    time.Time // time of the deletion
	Emptied bool      // whether the session was removed from the trash, too
}

// Error returns a text that names the session, the session remote and the time of the deletion.
func (e *DeletedError) Error() string {
	return fmt.Sprintf("session %s was deleted on %s at %s, so nothing is pushed", e.Session, e.Remote,
		e.Time.UTC().Format("2006-01-02 15:04:05 MST"))
}

// Remedy returns advice for the user, with the commands to run.
func (e *DeletedError) Remedy() string {
	if e.Emptied {
		return fmt.Sprintf("artifactfs session fork %s DIR continues in a new session of this host",
			control.ShellWord(e.Session+"@"))
	}
	return fmt.Sprintf("artifactfs session undelete %s --session-remote %s restores the session there, and artifactfs session fork %s DIR "+
		"continues in a new session of this host", control.ShellWord(e.Session), control.ShellWord(e.Remote),
		control.ShellWord(e.Session+"@"))
}

// deletedSlack is the maximum difference between the clocks of two hosts that is tolerated.
const deletedSlack = time.Hour

// deleted returns a *DeletedError if the session's metadata was pushed before but is missing on the session remote now,
// and the trash there (package session/trash) contains the session or its tombstone. If the trash does not contain it,
// the session remote has lost the session, for example because an older copy of the repository was restored. The map
// theirs contains the refs of the session remote.
func deleted(l *ledger, theirs map[string]object.ID) error {
	name := l.meta.Session
	meta := session.MetaRef(name)
	known := l.refs[meta]
	if known.acked.IsZero() || !theirs[meta].IsZero() {
		return nil
	}
	var last time.Time
	emptied := false
	for ref, id := range theirs {
		rest, ok := strings.CutPrefix(ref, thin.TrashPrefix+name+"/")
		stamp, trashed, _ := strings.Cut(rest, "/")
		at, err := strconv.ParseInt(stamp, 10, 64)
		tombstone := trashed == thin.Tombstone
		if !ok || err != nil || !tombstone && "refs/"+trashed != meta {
			continue
		}
		t := time.Unix(at, 0)
		if t.Before(last) || tombstone && t.Equal(last) {
			continue
		}
		// An entry that is older than the last push belongs to an earlier session with the same name.
		ours := !tombstone && (id == known.acked || known.mayHave(id))
		if ours || t.After(l.synced.Add(-deletedSlack)) {
			last, emptied = t, tombstone
		}
	}
	if last.IsZero() {
		return nil
	}
	return &DeletedError{Session: name, Remote: l.remote, Time: last, Emptied: emptied}
}
