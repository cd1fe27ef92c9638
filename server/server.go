// Package server is the process that "artifactfs serve" runs: it opens the records, the object store and the replicas,
// connects the REST API, the git server and the work in the background with them, and listens.
//
// A data directory belongs to one process, which holds a lock on it. Nothing in the directory has to be closed
// properly: a process that is killed leaves a directory that the next one opens.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/certfile"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/httpserve"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/archive"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/githttp"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/openapi"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/retention"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/server/running"
	"github.com/artifactfs/artifactfs/server/ui"
	"github.com/artifactfs/artifactfs/server/upkeep"
)

const (
	maxHeader = 64 << 10 // bytes
	// drainTime is the time that requests, such as pushes, have to finish after SIGTERM. It is shorter than the time after
	// which service managers kill a process.
	drainTime = 60 * time.Second
)

// Options configures a Server. Data is required.
type Options struct {
	Data     string // directory of the server; created if it does not exist
	Listen   string // host:port; "" means running.DefaultListen
	Database string // postgres://..., "": an SQLite file in Data
	Objects  string // s3://bucket/prefix, "": a directory in Data
	// file with the admin token, created with a new token if it does not exist; "": admin-token in Data
	AdminTokenFile string
	TLSCert        string // files for https; both or none
	TLSKey         string
	PublicURL      string  // address that clients use, if a proxy forwards their requests
	Proxies        Proxies // proxies that name the address of the client
	// id of the account, 32 hexadecimal digits; "": the stored one, or a random one at the first start
	Account string
	Secrets string // directory with files NAMESPACE/NAME of credentials for imports
	CAFile  string // certificates that imports and webhooks trust instead of those of the system
	// addresses that are not public, for imports and webhooks: "allow", "refuse", or "" (see allowPrivate)
	Private    string
	ImportHTTP bool         // imports by http from the loopback address, for tests
	Compat     bool         // behave as the live service of Cloudflare where it differs from its documentation
	Upkeep     upkeep.Times // zero: the default
	Log        *zap.Logger

	Git       githttp.Limits // of clones, fetches and pushes
	GitMemory int64          // that each process of git can allocate at most, in bytes; 0: 2 GiB
	// of this process and all processes of git, in bytes; 0: that of the machine or the control group
	Memory int64

	Quotas quota.Limits // of each namespace

	MaxEntries int64 // maximum size in bytes of the cache entries of each repository; 0: no limit
}

// tokenFile returns the path of the file with the admin token.
func (o Options) tokenFile() string {
	if o.AdminTokenFile != "" {
		return o.AdminTokenFile
	}
	return filepath.Join(o.Data, "admin-token")
}

// database returns the URL of the database.
func (o Options) database() string {
	if o.Database != "" {
		return o.Database
	}
	return "sqlite:" + filepath.Join(o.Data, "records.sqlite")
}

// Server is a running server.
type Server struct {
	running.Server
	Admin control.Secret // admin token if this process has made it, "" if it was made before

	o        Options
	log      *zap.Logger
	times    times
	listener net.Listener
	handler  http.Handler
	meter    *meter.Meter
	db       *records.DB
	store    objects.Store
	stream   *events.Stream
	memory   *places.Memory // of git processes
	quotas   *quota.Keeper
	draining atomic.Bool    // the server has been told to end
	closers  []func() error // in the order of opening
}

var (
	// ErrInUse means that another process uses the data directory.
	ErrInUse = errors.New("another server uses this directory")
	// ErrObjects means that the object store answers, but refuses this server.
	ErrObjects = errors.New("open object store")
)

// Open opens everything that a server needs, and listens. Requests are answered once Serve was called. The caller must
// call Close.
func Open(ctx context.Context, o Options) (_ *Server, err error) {
	s := &Server{o: o, log: o.Log, times: defaultTimes}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.lock(); err != nil {
		return nil, err
	}
	// The address is taken first, so that a server that cannot listen changes nothing.
	if s.listener, err = net.Listen("tcp", cmp.Or(o.Listen, running.DefaultListen)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s.closeLater(func() error {
		if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	if err := s.secure(); err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if err := s.Server.Write(o.Data); err != nil {
		return nil, err
	}
	return s, nil
}

// lock creates and locks the data directory.
func (s *Server) lock() error {
	if err := disk.MkdirAll(disk.OS, s.o.Data, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	unlock, err := disk.TryLock(running.Lock(s.o.Data))
	if errors.Is(err, disk.ErrLocked) {
		err = ErrInUse
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", s.o.Data, err)
	}
	s.closeLater(func() error { unlock(); return nil })
	return nil
}

// secure makes the listener speak TLS if there are files for it, and sets the URLs of the server.
func (s *Server) secure() error {
	s.listener = limit(s.listener, maxConnections, maxOfAddress, func(a netip.Addr) bool {
		return a.IsLoopback() || s.o.Proxies.contain(a)
	})
	s.Listen, s.Public, s.TokenFile, s.PID = s.listener.Addr().String(), s.o.PublicURL, s.o.tokenFile(), os.Getpid()
	s.URL = "http://" + s.Listen
	// commands on this host use the loopback address
	if at, ok := s.listener.Addr().(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		s.URL = "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
	}
	if s.o.TLSCert == "" {
		return nil
	}
	s.URL = "https" + strings.TrimPrefix(s.URL, "http")
	c, err := certfile.Read(s.o.TLSCert, s.o.TLSKey)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	s.listener = tls.NewListener(s.listener, &tls.Config{GetCertificate: c.Get, NextProtos: []string{"h2", "http/1.1"}})
	return nil
}

// connect opens the records, the objects and the replicas, and connects the handlers with them.
func (s *Server) connect(ctx context.Context) (err error) {
	o := s.o
	if s.db, err = openRecords(ctx, o); err != nil {
		return err
	}
	s.closeLater(s.db.Close)
	if s.Account, err = api.Account(ctx, s.db, o.Account); err != nil {
		return err
	}
	if s.Admin, err = ensureAdmin(ctx, s.db, o.tokenFile()); err != nil {
		return err
	}
	s.memory = limitMemory(o.Memory, o.GitMemory)
	s.meter = meter.New(s.db.Usage, s.db.Audit, s.log)
	s.closeLater(s.meter.Close)
	s.quotas = quota.New(s.db, o.Quotas)
	s.meter.Register(s.quotas.Metrics)
	store, err := objects.Open(cmp.Or(o.Objects, filepath.Join(o.Data, "objects")))
	if err != nil {
		return err
	}
	s.store = s.meter.Store(store)
	if err := s.store.Ready(ctx); errors.Is(err, objects.ErrUnavailable) { // reads of what this node has stored go on
		s.log.Warn("object store is unavailable; requests that need it get status 503 until it answers", zap.Error(err))
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrObjects, err)
	}
	replicas, err := replica.Open(replica.Options{Dir: filepath.Join(o.Data, "replicas"), Records: s.db, Objects: s.store,
		Memory: s.memory.Least()})
	if err != nil {
		return err
	}
	s.closeLater(replicas.Close)
	guard := access.NewGuard(s.db)
	s.stream = events.NewStream(s.db.Events, s.memory.Total()/2, s.log)
	s.closeLater(s.stream.Close)
	importer, err := s.outgoing(replicas)
	if err != nil {
		return err
	}
	node, err := nodeName(o.Data)
	if err != nil {
		return err
	}
	archiver := archive.New(archive.Options{Records: s.db, Objects: s.store, Replicas: replicas})
	keeper := retention.New(retention.Options{Records: s.db, Replicas: replicas, Archiver: archiver,
		Account: s.Account, Node: node,
		Log: s.log})
	git, err := githttp.New(githttp.Options{Records: s.db, Replicas: replicas, Guard: guard, Meter: s.meter,
		Account: s.Account,
		Dir:     filepath.Join(o.Data, "git"), Limits: o.Git, Quotas: s.quotas, Memory: s.memory,
		Compat: o.Compat, Log: s.log},
		runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	s.closeLater(func() error { git.Close(); return nil })
	acts := review.New(review.Options{Records: s.db, Replicas: replicas, Pusher: git, Memory: s.memory, Log: s.log})
	s.closeLater(acts.Close)
	rest := api.New(api.Options{Account: s.Account, URL: o.PublicURL, Records: s.db, Replicas: replicas, Guard: guard,
		Meter:  s.meter,
		Review: acts, Importer: importer, ImportHTTP: o.ImportHTTP, Events: s.stream, Archiver: archiver, Keeper: keeper,
		Quotas: s.quotas, Memory: s.memory, Compat: o.Compat, Log: s.log})
	s.closeLater(rest.Close)
	page, err := ui.New(ui.Options{URL: o.PublicURL, Repos: s.db.Repos, Namespaces: s.db.Namespaces,
		Archives: s.db.Archives,
		Replicas: replicas, Guard: guard, Meter: s.meter, Acts: acts, Quotas: s.quotas, Memory: s.memory, Log: s.log})
	if err != nil {
		return err
	}
	s.closeLater(page.Close)
	s.background(upkeep.New(upkeep.Options{Records: s.db, Objects: s.store, Replicas: replicas, Log: s.log, Node: node,
		Account:    s.Account,
		MaxEntries: o.MaxEntries, Retention: keeper.All, Times: o.Upkeep,
		Places: places.New(places.Options{Most: 1, Patience: time.Hour, Memory: s.memory, Class: places.Background})}).Run)
	s.handler = o.Proxies.restore(s.meter.Requests(s.routes(rest, git, page)))
	return nil
}

// routes returns the handler of all requests. It is no http.ServeMux, because that redirects paths that are not clean,
// and the API and git refuse them.
func (s *Server) routes(rest, git, page http.Handler) http.Handler {
	others := map[string]http.Handler{
		openapi.Path: openapi.Handler(), "/healthz": http.HandlerFunc(s.healthz), "/readyz": http.HandlerFunc(s.readyz),
		"/metrics": http.HandlerFunc(s.metrics),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := others[r.URL.Path]
		switch {
		case h != nil:
		case strings.HasPrefix(r.URL.Path, githttp.Prefix):
			h = git
		case ui.Serves(r.URL.Path):
			h = page
		default: // answers paths that it does not know as well
			h = rest
		}
		h.ServeHTTP(w, r)
	})
}

// background runs work until Close.
func (s *Server) background(work func(ctx context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	s.closeLater(func() error {
		stop()
		<-done
		return nil
	})
}

// closeLater makes Close call f before what was opened earlier is closed.
func (s *Server) closeLater(f func() error) { s.closers = append(s.closers, f) }

// Serve answers requests until ctx ends. Then it refuses new ones, and gives those that are under way drainTime to
// finish.
func (s *Server) Serve(ctx context.Context) error {
	h := s.times.server(s.handler)
	// a stream of events has no end, so Shutdown would wait for it in vain
	h.RegisterOnShutdown(func() { s.stream.Close() })
	defer context.AfterFunc(ctx, func() { s.draining.Store(true) })()
	if err := httpserve.Until(ctx, h, s.listener, drainTime, s.log); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Close closes what Open has opened, in the reverse order.
func (s *Server) Close() error {
	var failed []error
	for _, f := range slices.Backward(s.closers) {
		failed = append(failed, f())
	}
	s.closers = nil
	return errors.Join(failed...)
}

// openRecords opens the database of a server.
func openRecords(ctx context.Context, o Options) (*records.DB, error) {
	return records.Open(ctx, o.database())
}

// NewAdmin makes another admin token for the server of a data directory, which may be running.
func NewAdmin(ctx context.Context, o Options) (control.Secret, error) {
	if err := disk.MkdirAll(disk.OS, o.Data, 0o700); err != nil {
		return "", fmt.Errorf("create data directory: %w", err)
	}
	db, err := openRecords(ctx, o)
	if err != nil {
		return "", err
	}
	defer db.Close()
	return newAdminToken(ctx, db, o.tokenFile())
}
