// Package api serves the REST API of Cloudflare Artifacts, and the routes below /artifactfs/v1 that this server adds to it.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/imports"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Prefixes are the paths below which an API serves requests.
var Prefixes = []string{"/client/v4/", "/v1/api/", "/artifactfs/v1/"}

// Importer copies repositories of other servers.
type Importer interface {
	// Check asks the other server whether it has the repository. It returns errors of package imports wrapped.
	Check(ctx context.Context, r imports.Request) (imports.Remote, error)
	// Start begins to import into a repository whose status is importing, or to bring an imported repository up to date. It does
	// not wait until the import has ended. It returns imports.ErrBusy if the repository is being imported already. An empty
	// request repeats the last one.
	Start(ctx context.Context, repo records.Repo, r imports.Request) error
	// Status returns the progress of the last import of the repository; records.ErrNotFound if it was never imported.
	Status(ctx context.Context, repo records.Repo) (imports.Status, error)
}

// Options configures an API.
type Options struct {
	Account  string // id of the only account: 32 hexadecimal digits
	URL      string // public URL of the server, without a slash at the end; "" for the one that each client uses
	Records  *records.DB
	Replicas *replica.Set
	Guard    *access.Guard
	Importer Importer // nil: imports are refused
	// Events serves a stream of events to a client that may read them. The path values "namespace" and "repo" of the request
	// select the events; both are "" for all events.
	Events http.Handler
	Compat bool // behave as the live service where it differs from its documentation
	Log    *slog.Logger
	Now    func() time.Time // nil for time.Now
}

// API serves requests below Prefixes. It may be used from any goroutine.
type API struct{ o Options }

// New returns an API.
func New(o Options) *API { return &API{o} }

// Account returns the id of the server's account. The first start stores id, or a random one if id is "". A later start with
// another id fails.
func Account(ctx context.Context, db *records.DB, id string) (string, error) {
	panic("not written yet")
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("not written yet") }
