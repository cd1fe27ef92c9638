// Package imports copies repositories of other git servers into repositories of this server, in the background.
//
// An import is a record (records.Import), which every node can continue. The node that runs it has a lease, which it
// renews. When a node dies, another one begins the import again after the lease has ended. Nothing of an import is
// visible before it has succeeded: git fetches into a separate directory, the pack is stored like that of a push, and
// one transaction makes the refs visible.
//
// A repository can be imported again, which updates it. Refs that were changed on this server since the last import are
// not changed.
//
// The URL comes from a user. So this process sends the first request itself, because its answer shows what is wrong
// with a URL, and git connects through a proxy in this process, which refuses addresses that are not public and counts
// bytes (package egress).
package imports

import (
	"errors"
	"time"
)

var (
	// ErrScheme means that a URL does not begin with https or contains credentials.
	//lint:ignore ST1005 the text is the answer of the reference service
	ErrScheme = errors.New("Must be an HTTPS URL")
	// ErrNotGit means that the URL is not that of a git repository, or that this server may not connect to its host.
	ErrNotGit = errors.New("not a git repository")
	// ErrAuth means that the other server requires credentials, or refuses those of the request, or that the secret
	// does not exist.
	ErrAuth = errors.New("remote requires authentication")
	// ErrBranch means that the repository does not have the branch.
	ErrBranch = errors.New("branch not found")
	// ErrDepth means that the depth of a request is not allowed.
	ErrDepth = errors.New("depth must be between 0 and 1000000")
	// ErrUnavailable means that the other server did not answer.
	ErrUnavailable = errors.New("remote is unavailable")
	// ErrBusy means that the repository is being imported already.
	ErrBusy = errors.New("import is in progress")
)

// Request selects the repository and the refs that an import copies.
type Request struct {
	URL    string // URL with https and without credentials
	Branch string // short name of the only branch to import; "" for all branches and tags
	Depth  int    // number of commits of each branch to import; 0 for all

	// Secret is the name of a file with credentials, in the namespace's directory of secrets (Options.Secrets); "" for
	// none. The server never stores the credentials themselves in records, and they are never part of a log, an error
	// or an event.
	Secret    string
	Namespace string // namespace of the secret; Start sets it to that of the repository
}

// Remote contains the properties of a repository on another server.
type Remote struct {
	DefaultBranch string // short name; "" if the repository is empty or has no default branch
	ObjectFormat  string // "sha1" or "sha256"
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
	State State
	// current step, such as "receiving objects"; "" between two attempts; a remark if the import has succeeded
	Phase    string
	Done     int64  // number of objects that the phase has processed
	Total    int64  // number of objects of the phase; 0 if it is not known
	Bytes    int64  // bytes that were received
	Error    string // reason why the import failed, without secrets
	Started  time.Time
	Finished time.Time // time of the end; zero until the import has ended
}
