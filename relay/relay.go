// Package relay is the process that "artifactfs relay" runs: a server between the hosts of one cluster or region and
// their git servers. It speaks git's protocol version 2 over HTTP, and stores objects that many hosts request, so that
// a git server sends them once.
//
// Terms. A *remote* is a repository on a git server, named by its URL. A *reader* is a remote together with the
// credential of a client (package grants). A *snap* is the pack of a commit and its parents with their trees, without
// blobs: the answer to the first request of a mount. A *group* is a part of the blobs of a commit, which are requested
// and stored together (package plan). A *flight* is the request for a snap or a group that is being answered; all
// clients that need the same one share it. *Passing* a request means to send it to the git server unchanged, and its
// answer to the client.
//
// A request is passed unless the relay can answer it from snaps and groups (exchange.go). Refs are always passed. An
// object is served only to readers that have proved to the git server within the last seconds that they may read its
// commit. If the object store, the disk or a flight fails, the relay passes the request.
//
// Files: relay.go (start and end), route.go (URLs), upstream.go (requests to git servers), exchange.go (how a request
// is answered), pass.go (passing), remote.go (the state of a remote), flight.go, snap.go, group.go, fill.go and
// ranged.go (flights), compose.go (answers), sizes.go (sizes), metrics.go.
//
// Locks: Relay.mu is acquired before remote.mu. A goroutine that holds any other lock acquires no further one. No
// goroutine waits for the network or the disk while it holds a lock, except that filling.mu is held while a blob is
// written to the local disk.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/certfile"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/httpserve"
	"github.com/artifactfs/artifactfs/relay/grants"
	"github.com/artifactfs/artifactfs/relay/shelf"
	"github.com/artifactfs/artifactfs/server/objects"
)

const (
	// DefaultListen is the address at which a relay listens.
	DefaultListen = "127.0.0.1:9428"
	// DefaultCacheSize is the default of the maximum total size of the files on the local disk, in bytes.
	DefaultCacheSize = 20 << 30
	// LeastCacheSize is the lowest allowed maximum size of the cache, in bytes. A smaller cache would evict groups
	// before all hosts have read them.
	LeastCacheSize = 64 << 20

	headerTime = 10 * time.Second // maximum time until the header of a request has arrived
	bodyTime   = time.Minute      // maximum time until the whole request has arrived
	idleTime   = 3 * time.Minute  // time for which an unused connection stays open; longer than clients keep one open
	maxHeader  = 64 << 10         // maximum size of the header of a request, in bytes
	// drainTime is the time that requests in progress have after SIGTERM. Clients whose requests are not finished
	// continue with the git server.
	drainTime = 10 * time.Second
	// uploadTime is the maximum time for which uploads to the object store continue after the last request has ended.
	uploadTime = 15 * time.Second
)

// Options configures a Relay. Data, Listen, CacheSize, Allow and Log are required.
type Options struct {
	Data      string   // directory of the relay; created if it does not exist
	Listen    string   // address to listen at, as host:port
	Objects   string   // object store: s3://bucket/prefix, or a directory that relays share; "": none
	CacheSize int64    // maximum size of the files on the local disk, in bytes
	Allow     []string // URLs of the remotes that are served, with all remotes below them; "*" stands for every remote
	TLSCert   string   // files with the certificate and the key for https; both or none must be set
	TLSKey    string
	CAFile    string // file with the certificates that the relay trusts for git servers instead of those of the system
	Log       *zap.Logger
}

// Relay is a running relay.
type Relay struct {
	URL    string // URL at which the relay listens
	Listen string

	o        Options
	log      *zap.Logger
	allowed  allowed
	upstream *upstream
	shelf    *shelf.Shelf
	grants   *grants.Grants
	counts   counts
	listener net.Listener
	unlock   func()

	ctx     context.Context // context of flights; ends with Close
	stop    context.CancelFunc
	flights sync.WaitGroup

	mu      sync.Mutex
	remotes map[string]*remote
	closed  bool
}

var (
	// ErrInUse means that another process uses the data directory.
	ErrInUse = errors.New("another relay uses the data directory")
	// ErrObjects means that the object store answers, but refuses this relay.
	ErrObjects = errors.New("open object store")
)

// Open opens the files of a relay, and listens. Requests are not answered until Serve is called. The caller must call
// Close.
func Open(ctx context.Context, o Options) (_ *Relay, err error) {
	r := &Relay{o: o, log: o.Log, remotes: map[string]*remote{}, unlock: func() {}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.allowed, err = parseAllowed(o.Allow); err != nil {
		return nil, err
	}
	unlock, err := shelf.Lock(o.Data)
	if errors.Is(err, disk.ErrLocked) {
		err = ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", o.Data, err)
	}
	r.unlock = unlock
	roots, err := certfile.Roots(o.CAFile)
	if err != nil {
		return nil, err
	}
	r.upstream = newUpstream(roots, &r.counts)
	if r.listener, err = net.Listen("tcp", o.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := r.secure(); err != nil {
		return nil, err
	}
	var store objects.Cache
	if o.Objects != "" {
		if store, err = objects.OpenCache(o.Objects); err != nil {
			return nil, err
		}
		if err := store.Ready(ctx); errors.Is(err, objects.ErrUnavailable) {
			r.log.Warn("object store is unavailable; git servers are asked until it answers", zap.Error(err))
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrObjects, err)
		}
	}
	r.shelf, err = shelf.Open(shelf.Options{Dir: filepath.Join(o.Data, "cache"), Limit: o.CacheSize,
		Store: store, Log: r.log})
	if err != nil {
		return nil, err
	}
	r.grants = grants.New(r.ctx)
	return r, nil
}

// secure makes the listener use TLS if the options name a certificate and a key, and sets the URL.
func (r *Relay) secure() error {
	r.Listen = r.listener.Addr().String()
	at := r.Listen
	if tcp, ok := r.listener.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		at = net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	r.URL = "http://" + at
	if r.o.TLSCert == "" {
		return nil
	}
	r.URL = "https://" + at
	pair, err := certfile.Read(r.o.TLSCert, r.o.TLSKey)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	r.listener = tls.NewListener(r.listener, &tls.Config{GetCertificate: pair.Get, NextProtos: []string{"http/1.1"}})
	return nil
}

// Serve answers requests until ctx ends. Then it refuses new requests, and waits for those in progress, but at most for
// drainTime.
func (r *Relay) Serve(ctx context.Context) error {
	s := &http.Server{Handler: r, ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader}
	if err := httpserve.Until(ctx, s, r.listener, drainTime, r.log); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Close ends all flights, waits for uploads to the object store, and closes the listener.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.flights.Wait()
	var err error
	if r.listener != nil {
		if err = r.listener.Close(); errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	if r.grants != nil {
		r.grants.Wait()
	}
	if r.shelf != nil {
		ctx, cancel := context.WithTimeout(context.Background(), uploadTime)
		r.shelf.Close(ctx)
		cancel()
	}
	if r.upstream != nil {
		r.upstream.client.CloseIdleConnections()
	}
	r.unlock()
	return err
}

// goFlight runs work in a goroutine for whose end Close waits. It returns false, and does not run work, if the relay is
// closed.
func (r *Relay) goFlight(work func(ctx context.Context)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.flights.Add(1)
	go func() {
		defer r.flights.Done()
		ctx, cancel := context.WithTimeout(r.ctx, flightTime)
		defer cancel()
		work(ctx)
	}()
	return true
}

// flightTime is the maximum duration of a flight.
const flightTime = 30 * time.Minute
