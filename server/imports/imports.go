// Package imports copies repositories of other git servers into repositories of this one, in the background.
package imports

import (
	"errors"
	"time"
)

var (
	// ErrNotGit means that the URL is not that of a git repository.
	ErrNotGit = errors.New("not a git repository")
	// ErrAuth means that the other server requires credentials, or refuses those of the request.
	ErrAuth = errors.New("remote requires authentication")
	// ErrUnavailable means that the other server did not answer.
	ErrUnavailable = errors.New("remote is unavailable")
	// ErrBusy means that the repository is being imported already.
	ErrBusy = errors.New("import is in progress")
)

// Request selects what an import copies.
type Request struct {
	URL    string // https, without credentials
	Branch string // short name of the only branch; "" for all branches and tags
	Depth  int    // number of commits of each branch; 0 for all

	// Username and Password are sent to the other server. They are never part of a log, an error or an event.
	Username string
	Password string
}

// State is the state of an import.
type State string

const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
)

// Status is the progress of an import.
type Status struct {
	State    State
	Phase    string // such as "receiving objects"; "" if nothing is done at the moment
	Done     int64  // objects of the phase that are done
	Total    int64  // objects of the phase; 0 if unknown
	Bytes    int64  // received
	Error    string // why the import failed, without secrets
	Started  time.Time
	Finished time.Time // zero until the import has ended
}
