// Package api serves the REST API of Cloudflare Artifacts, and the routes below /artifactfs/v1 that this server adds to
// it.
//
// A route is an entry of the table in routes.go. A handler reads the request through its call, and returns an answer or
// an error; only call.send writes to the client. An error of type *Fault is shown to the client as it is. Other errors
// are translated in one place (faultOf), and their text goes to the log only, because it may contain paths and
// addresses of the server.
package api

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/archive"
	"github.com/artifactfs/artifactfs/server/comparing"
	"github.com/artifactfs/artifactfs/server/imports"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/retention"
	"github.com/artifactfs/artifactfs/server/review"
)

// Prefixes are the paths below which an API serves requests.
var Prefixes = []string{"/client/v4/", "/v1/api/", "/artifactfs/v1/"}

// Importer copies repositories of other servers.
type Importer interface {
	// Check returns the properties of the repository on the other server. Its errors wrap those of package imports.
	Check(ctx context.Context, r imports.Request) (imports.Remote, error)
	// Start begins the import of a repository whose status is importing, or imports a repository again. It does not
	// wait for the end of the import. It returns imports.ErrBusy if the repository is being imported already. An empty
	// request repeats the last one. Unless cause is empty, the transaction that adds the import also writes its audit
	// entry.
	Start(ctx context.Context, repo records.Repo, r imports.Request, cause records.Cause) error
	// Status returns the progress of the last import of the repository, and records.ErrNotFound if it was never
	// imported.
	Status(ctx context.Context, repo records.Repo) (imports.Status, error)
}

// Meter counts operations for billing, and writes the audit entries of calls that change no record. *meter.Meter
// implements it.
type Meter interface {
	Count(r records.Repo, operation string, bytes int64)
	Audit(e records.AuditEntry)
}

// Replicas returns git directories. *replica.Set implements it.
type Replicas interface {
	Acquire(ctx context.Context, repoID string) (*replica.Replica, error)
	Git() gitcmd.Confined
}

// Options configures an API. Account, Records, Replicas, Guard, Meter, Review and Log must be set.
type Options struct {
	Account string // id of the only account, with 32 hexadecimal digits
	// public URL of the server, without a slash at the end; "" stands for the URL that the client has used
	URL      string
	Records  *records.DB
	Replicas Replicas
	Guard    *access.Guard
	Meter    Meter
	Review   *review.Service
	Importer Importer // runs imports; if nil, imports are refused
	// ImportHTTP allows imports by http from the loopback address, for tests.
	ImportHTTP bool
	// Events serves a stream of events to a client that may read them. The path values "namespace" and "repo" of the
	// request select the events; both are "" for all events. If Events is nil, the API has no streams.
	Events   http.Handler
	Archiver *archive.Archiver // archives and reopens sessions
	Keeper   *retention.Keeper // applies the rules of namespaces
	Compat   bool              // whether to behave as the live service where that differs from its documentation
	Quotas   *quota.Keeper     // checks quotas of namespaces; nil: there are none
	Memory   *places.Memory    // memory of all git processes together; nil: no limit
	Log      *zap.Logger
	Now      func() time.Time // returns the present time; nil stands for time.Now
}

// readers is the maximum number of requests that read from git directories at the same time. Further requests wait, for
// at most answerTime.
const readers = 32

// Files that are too large to be sent from memory, and values of cache entries that are received, have separate places,
// because a client can take hours for one of them.
const (
	largeFiles   = 64 // maximum number of large files that are sent, or received, at the same time; other requests wait
	largeFilesOf = 8  // maximum number of these for one namespace
)

// API serves requests below Prefixes. It may be used from any goroutine.
type API struct {
	o       Options
	routes  []*route
	reading *places.Places // places for requests that read from a git directory
	large   *places.Places // places for requests that send large files
	values  *places.Places // places for requests whose bodies are stored on the disk
	bodies  *places.Bodies // places for requests with large bodies
	pool    read.Pool
	merges  comparing.Merges
}

var _ http.Handler = (*API)(nil)

// New returns an API.
func New(o Options) *API {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &API{o: o, routes: routes(), pool: read.Pool{Memory: o.Memory},
		bodies: places.NewBodies(o.Memory, answerTime),
		reading: places.New(places.Options{Most: readers, MostOf: places.PartsOfReads(readers), Patience: answerTime,
			Memory: o.Memory,
			Class:  places.Reads}),
		large: places.New(places.Options{Most: largeFiles, MostOf: map[places.Kind]int{places.OfNamespace: largeFilesOf},
			Patience: answerTime, Memory: o.Memory, Class: places.Downloads}),
		values: places.New(places.Options{Most: largeFiles, MostOf: map[places.Kind]int{places.OfNamespace: largeFilesOf},
			Patience: answerTime})}
}

// Close ends the git processes that are kept for later requests. The API can still serve requests after Close.
func (a *API) Close() error { return a.pool.Close() }

// ServeHTTP serves one request. A request for an unknown route gets the same answer as from the live service, whatever
// its method is.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, params, account := a.match(r)
	if route == nil {
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("404 Not Found"))
		return
	}
	c := &call{a: a, w: w, r: r, route: route, params: params}
	c.serve(account)
}
