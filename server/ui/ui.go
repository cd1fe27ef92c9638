// Package ui serves the page of a server: sessions with their timelines, files at any point, and differences of any two
// points, as HTML that works without a script. It reads the same data as the REST API, from the same replicas, with the
// same tokens and checks.
//
// A user signs in with a token, which is kept in a cookie of the browser. The server looks the token up for every
// request, so a revoked token shows nothing any more. Only the page of tokenCommand contains a secret. Requests by GET
// change nothing.
//
// Contents of repositories may come from any user. They are part of a page only as escaped text; the only HTML that the
// templates do not make is that of highlighted code (code.go). The content security policy allows no script except that
// of this package.
package ui

import (
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/comparing"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Prefix is the path below which a UI serves requests. It also serves "/".
const Prefix = "/ui/"

// Requests that read from git directories have separate places, so that pages and the REST API do not wait for each
// other.
const (
	readers = 16 // maximum number of requests that read at the same time; others wait
	// answerTime is the maximum duration of a request, and the maximum time for which it waits for a place.
	answerTime = 30 * time.Second
)

// Meter counts operations and writes audit entries. *meter.Meter implements it.
type Meter interface {
	Count(r records.Repo, operation string, bytes int64)
	Audit(e records.AuditEntry)
}

// Repos finds repositories. *records.Repos implements it.
type Repos interface {
	ByID(ctx context.Context, id string) (records.Repo, error)
	Get(ctx context.Context, namespace, name string) (records.Repo, error)
	List(ctx context.Context, q records.RepoQuery) (page []records.Repo, total int, next string, err error)
	Refs(ctx context.Context, id string) ([]records.Ref, error)
}

// Namespaces finds namespaces. *records.Namespaces implements it.
type Namespaces interface {
	Get(ctx context.Context, name string) (records.Namespace, error)
	List(ctx context.Context, after string, offset, limit int) (page []records.Namespace, total int, err error)
}

// Archives lists archived sessions. *records.Archives implements it.
type Archives interface {
	List(ctx context.Context, repoID, after string, limit int) ([]records.Archive, error)
}

// Guard checks the tokens of requests. *access.Guard implements it.
type Guard interface {
	Any(ctx context.Context, r *http.Request) (records.Token, error)
	Admin(ctx context.Context, r *http.Request, needs string, scope records.Scope) (records.Token, error)
	Git(ctx context.Context, r *http.Request, repo records.Repo, scope records.Scope) (records.Token, error)
}

// Replicas returns git directories. *replica.Set implements it.
type Replicas interface {
	Acquire(ctx context.Context, repoID string) (*replica.Replica, error)
	Git() gitcmd.Confined
}

// Options configures a UI. Repos, Namespaces, Replicas, Guard, Meter and Log must be set.
type Options struct {
	// public URL of the server, without a slash at the end; "" stands for the URL that the client has used
	URL        string
	Repos      Repos
	Namespaces Namespaces
	Archives   Archives // lists archived sessions; nil: there are none
	Replicas   Replicas
	Guard      Guard
	Meter      Meter
	Acts       Acts           // makes the acts of users; nil: the page is read-only
	Quotas     *quota.Keeper  // counts the requests of namespaces; nil: there are no quotas
	Memory     *places.Memory // memory of all git processes together; nil: no limit
	Log        *zap.Logger
	Now        func() time.Time // returns the present time; nil stands for time.Now
	Embedding  Embedding
}

// UI serves requests for pages. It may be used from any goroutine.
type UI struct {
	o       Options
	pages   *template.Template
	assets  map[string]asset // assets by path
	paths   map[string]string
	reading *places.Places
	bodies  *places.Bodies
	pool    read.Pool
	merges  comparing.Merges
	origins *http.CrossOriginProtection
}

var _ http.Handler = (*UI)(nil)

//go:embed pages/*.html
var pageFiles embed.FS

// New returns a UI.
func New(o Options) (*UI, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	u := &UI{o: o, pool: read.Pool{Memory: o.Memory}, origins: http.NewCrossOriginProtection(),
		bodies: places.NewBodies(o.Memory, answerTime),
		reading: places.New(places.Options{Most: readers, MostOf: places.PartsOfReads(readers), Patience: answerTime,
			Memory: o.Memory,
			Class:  places.Reads})}
	if o.URL != "" {
		if err := u.origins.AddTrustedOrigin(originOf(o.URL)); err != nil {
			return nil, fmt.Errorf("use public URL: %w", err)
		}
	}
	var err error
	if u.assets, u.paths, err = loadAssets(o.Embedding.Assets); err != nil {
		return nil, err
	}
	u.pages, err = template.New("").Funcs(template.FuncMap{
		"ago": func(t time.Time) string { return ago(t, o.Now()) }, "stamp": stamp, "short": short, "number": number,
		"shown": shown,
	}).ParseFS(pageFiles, "pages/*.html")
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	return u, nil
}

// originOf returns the part of a URL before its path.
func originOf(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

// Close ends the git processes that are kept for later requests.
func (u *UI) Close() error { return u.pool.Close() }

// Serves reports whether a UI serves the path.
func Serves(path string) bool { return path == "/" || strings.HasPrefix(path, Prefix) }

// ServeHTTP serves one request.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a, ok := u.assets[r.URL.Path]; ok {
		a.serve(w, r)
		return
	}
	v := &visit{u: u, w: w, r: r}
	v.serve()
}
