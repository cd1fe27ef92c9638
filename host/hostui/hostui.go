// Package hostui serves web pages about one host: its sessions, by the pages of package server/ui, and live views of
// its mounts. It needs no server, no account and no daemon. It only reads.
//
// The page answers only requests with a random token, which the URL contains in its fragment, and on a loopback address
// only processes of the same user or of root. Browsers send the cookie with the token to every port of a host, so the
// name of the cookie contains the port.
//
// Terms: a live view shows the files of a mount as a treemap, with the requests and the traffic of the last second. A
// feed is the connection to a daemon from which live views get their data; it exists while a browser shows the view,
// and a few seconds longer.
//
// Locks: feeds.mu, then feed.mu.
package hostui

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/httpserve"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/ui"
)

// Tracer is the connection to a daemon from which the page gets events and the status of mounts. *control.Client
// implements it.
type Tracer interface {
	Trace(ctx context.Context, r control.TraceRequest, each func(control.Trace) error) error
	Mounts(ctx context.Context, r control.MountsRequest) (control.Status, error)
}

// Mount describes a mount, or a session that is not mounted.
type Mount struct {
	control.MountStatus
	Daemon Tracer // daemon that serves the mount; nil if the session is not mounted
}

// Options configures a page. State, Mounts and Log must be set.
type Options struct {
	State string // state directory
	// Mounts returns all mounts and the sessions that are not mounted, and whether a daemon is running.
	Mounts func(ctx context.Context) (list []Mount, running bool, err error)
	Log    *zap.Logger
}

// Page serves the web pages of a host. It may be used from any goroutine.
type Page struct {
	o     Options
	token string
	guard guard
	ui    *ui.UI
	pages *template.Template
	feeds feeds
	repos *repositories
}

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed assets/*
var assetFiles embed.FS

const (
	livePath   = ui.Prefix + "live"
	eventsPath = livePath + "/events"
)

// New returns a Page for a listener with the given address.
func New(o Options, address net.Addr) (*Page, error) {
	var random [20]byte
	rand.Read(random[:]) // never fails
	p := &Page{o: o, token: hex.EncodeToString(random[:])}
	p.guard = guard{hash: sha256.Sum256([]byte(p.token)), who: userName()}
	p.feeds.open = map[feedKey]*feed{}
	var err error
	if p.pages, err = template.New("").ParseFS(pageFiles, "pages/*.html"); err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	cookie := "artifactfs-ui"
	if tcp, ok := address.(*net.TCPAddr); ok {
		cookie += "-" + strconv.Itoa(tcp.Port)
	}
	p.repos = &repositories{state: o.State}
	repos := p.repos
	p.ui, err = ui.New(ui.Options{Repos: repos, Namespaces: namespaces{repos}, Replicas: repos, Guard: p.guard,
		Meter: noMeter{}, Log: o.Log,
		Embedding: ui.Embedding{Cookie: cookie, Assets: assetFiles, Remote: repos.remote,
			Hint: "It is in the URL that artifactfs ui has printed. Open that URL again."}})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// userName returns the name of the user of this process.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Token returns the secret token that requests to the page must contain.
func (p *Page) Token() string { return p.token }

// Close ends all live views and the git processes of the page.
func (p *Page) Close() error {
	p.feeds.close()
	return p.ui.Close()
}

// ServeHTTP serves one request.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/":
		p.ui.Show(w, r, p.home)
	case livePath:
		p.ui.Show(w, r, func(ctx context.Context) (ui.Page, error) { return p.live(ctx, r) })
	case eventsPath:
		p.events(w, r)
	default:
		if !ui.Serves(r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		p.ui.ServeHTTP(w, r)
	}
}

// body executes a template of this package.
func (p *Page) body(name string, data any) (template.HTML, error) {
	var b bytes.Buffer
	if err := p.pages.ExecuteTemplate(&b, name, data); err != nil {
		return "", err
	}
	return template.HTML(b.String()), nil // the template has escaped the data
}

// guard checks the token of requests to the page. The token permits to read everything.
type guard struct {
	hash [sha256.Size]byte
	who  string
}

var _ ui.Guard = guard{}

// Any returns the token of a request. It returns access.ErrInvalid if the request has another token than the page.
func (g guard) Any(_ context.Context, r *http.Request) (records.Token, error) {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash := sha256.Sum256([]byte(secret))
	if !ok || subtle.ConstantTimeCompare(hash[:], g.hash[:]) != 1 {
		return records.Token{}, access.ErrInvalid
	}
	return records.Token{ID: "host", Role: records.AdminToken, Scope: records.ReadScope, Actor: g.who}, nil
}

// Admin returns the token of a request if scope is that of reading, and access.ErrInsufficient otherwise.
func (g guard) Admin(ctx context.Context, r *http.Request, _ string, scope records.Scope) (records.Token, error) {
	t, err := g.Any(ctx, r)
	if err == nil && scope != records.ReadScope {
		err = access.ErrInsufficient
	}
	return t, err
}

// Git returns the token of a request if scope is that of reading, and access.ErrInsufficient otherwise.
func (g guard) Git(ctx context.Context, r *http.Request, _ records.Repo, scope records.Scope) (records.Token, error) {
	return g.Admin(ctx, r, "", scope)
}

// noMeter is a ui.Meter that ignores all counts and audit entries.
type noMeter struct{}

var _ ui.Meter = noMeter{}

func (noMeter) Count(records.Repo, string, int64) {}

func (noMeter) Audit(records.AuditEntry) {}

// closeTime is the time for which Serve waits for requests in progress when it ends.
const closeTime = time.Second

// Serve serves the page on the listener l until ctx ends, and then closes the listener and all connections. Live views
// receive a last message that the page has ended.
func Serve(ctx context.Context, l net.Listener, p *Page) error {
	s := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 32 << 10,
		ErrorLog:       zap.NewStdLog(p.o.Log), BaseContext: func(net.Listener) context.Context { return ctx }}
	if err := httpserve.Until(ctx, s, ownListener{l, p.o.Log}, closeTime, p.o.Log); err != nil {
		return fmt.Errorf("serve page: %w", err)
	}
	return nil
}

var _ io.Closer = (*Page)(nil)
