package gate

import (
	"errors"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// checkLocks decides about the locks of sessions. They are compared with the locks before the push, by the server's
// clock.
func (j *judge) checkLocks(u records.RefUpdate) (refused, err error) {
	switch {
	case u.Removes() && (u.Name != locks.Ref || controls(j.Token)):
		return nil, nil
	case u.Removes():
		return approval.Refused(locks.Ref + " can only be removed with a token for the REST API"), nil
	case u.Name != locks.Ref:
		return approval.Refused("no ref can be below " + locks.Ref), nil
	case j.refs.ID(u.Name) != u.Old && !(u.Creates() && j.refs.ID(u.Name) == ""):
		return errStale, nil
	}
	read := func(commit string) (locks.File, error) {
		text, err := j.file(reffile.File{Ref: locks.Ref, Name: locks.FileName}, commit)
		if err != nil {
			return locks.File{}, err
		}
		return locks.Parse(text)
	}
	var old locks.File
	if !u.Creates() {
		if old, err = read(u.Old); err != nil && !invalidLocks(err) { // an invalid file can be replaced
			return nil, err
		}
	}
	next, err := read(u.New)
	if invalidLocks(err) {
		return approval.Refused(err.Error()), nil
	} else if err != nil {
		return nil, err
	}
	by := locks.Pusher{Actor: Actor(j.Token), Session: j.Token.Session, Controls: controls(j.Token)}
	if err := locks.Verify(old, next, by, j.Now); err != nil {
		return approval.Refused(err.Error()), nil
	}
	return nil, nil
}

func invalidLocks(err error) bool { return invalid(err) || errors.Is(err, locks.ErrFile) }
