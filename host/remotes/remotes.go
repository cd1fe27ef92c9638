// Package remotes opens the remotes of mounts: their stores, their session remotes, and the logins for both. Mounts of
// one remote share a store, and mounts with equal credentials share a login.
package remotes

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/git/transport/via"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// DefaultDeadline is the maximum time for which a file-system call waits for contents, if the mount request sets no
// other limit.
const DefaultDeadline = time.Minute

// retries is the maximum number of repetitions of a failed request to a remote.
const retries = 3

// Remotes has the open stores and the logins of all mounts of a daemon. The methods may be called from any goroutine.
type Remotes struct {
	state string // path of the state directory
	// state directory of another daemon, from which stores read if the request names no other; "" if there is none
	from   string
	log    *zap.Logger
	memory *cache.Memory // cache of trees and small contents in memory, of all stores
	blobs  *cache.Blobs  // cache of contents on disk, of all stores

	// times at which readers of any store last began to wait; prefetches are delayed while readers wait
	readers fetch.Readers
	ahead   transport.Ahead // servers that refuse a command if it is sent before their capabilities are known

	creating sync.Mutex // held while the command of --session-remote-create runs

	// The fields below are protected by mu.
	mu     sync.Mutex
	stores map[storeKey]*sharedStore // open stores
	relays map[string]*via.Relay     // relays that requests have named, by their URLs
	held   map[any][]*Login          // logins that mounts use, by the mount or its request
	hosts  map[string]*sharedHost    // open state directories of other daemons, by path
}

// New returns a Remotes for a daemon with the given state directory and caches. The parameter from is the state
// directory of another daemon, from which stores read if the request names no other, or "".
func New(state, from string, log *zap.Logger, memory *cache.Memory, blobs *cache.Blobs) *Remotes {
	return &Remotes{
		state: state, from: from, log: log, memory: memory, blobs: blobs,
		stores: map[storeKey]*sharedStore{}, held: map[any][]*Login{}, hosts: map[string]*sharedHost{},
		relays: map[string]*via.Relay{},
	}
}

// sharedStore is a store with the number of mounts that use it. Store and err may be read once opened is closed.
type sharedStore struct {
	*fetch.Store
	users  int           // number of mounts that use the store; protected by the field mu of Remotes
	opened chan struct{} // closed when Store or err is set
	err    error         // error because of which the store could not be opened
	leave  func()        // releases the lock that keeps other processes from removing the store
	host   *sharedHost   // state directory of another daemon, from which the store reads; nil if there is none
}

// storeKey identifies an open store. Mounts with equal keys share a store. The fields are those on which the options of
// the store depend.
type storeKey struct {
	dir, remote string        // dir: name of the store's directory; remote: the remote as the request names it
	login       *Login        // shared by mounts with the same credentials
	env         string        // hash of the environment of the request
	via         string        // URL of the relay in the request
	timeout     time.Duration // deadline in the request; 0 stands for DefaultDeadline
	from        string        // state directory of another daemon; "": none
}

// options returns the options for connections to a remote of the request req with the login l.
func (r *Remotes) options(req control.MountRequest, l *Login) transport.Options {
	return transport.Options{Login: l.Login, Env: Environment(req), Retries: retries, Log: r.log,
		Stall: req.Timeout, Patience: deadline(req), Ahead: &r.ahead,
		BundleDir: func(url string) string { return statedir.BundleDir(r.state, url) }}
}

// deadline returns the maximum time for which a file-system call in the mount of the request req waits for contents.
func deadline(req control.MountRequest) time.Duration {
	if req.Timeout == 0 {
		return DefaultDeadline
	}
	return req.Timeout
}

// Store returns the store for the mounted remote of the request req, for a mount with the login l. It opens the store
// if no other mount uses it, or waits for another call that is opening it. The caller must call release once when it no
// longer uses the store. If Store returns an error, release is nil.
func (r *Remotes) Store(req control.MountRequest, l *Login) (s *fetch.Store, release func(), err error) {
	options := r.options(req, l)
	if options.Via, err = r.relay(req.Via); err != nil {
		return nil, nil, err
	}
	remote, err := transport.Open(req.Remote, options)
	if err != nil {
		return nil, nil, err
	}
	notice := ""
	if req.Via != "" && !l.IsWeb() {
		notice = "the relay of --via is not used: only remotes with an http or https URL are reached through a relay"
	}
	if req.CacheSize > 0 {
		r.blobs.SetQuota(req.CacheSize)
	}
	dir := statedir.StoreName(remote.URL())
	key := storeKey{dir, req.Remote, l, Environment(req).Fingerprint(), req.Via, req.Timeout,
		cmp.Or(req.StoreFrom, r.from)}
	r.mu.Lock()
	// The first user opens the store without holding mu. The other users wait until the channel opened is closed.
	shared, ok := r.stores[key]
	if !ok {
		shared = &sharedStore{opened: make(chan struct{}), host: r.holdHostLocked(key.from)}
		r.stores[key] = shared
	}
	shared.users++
	r.mu.Unlock()
	release = func() { r.release(key, shared) }
	if ok {
		remote.Close()
		<-shared.opened
	} else {
		path := filepath.Join(r.state, "stores", dir)
		if shared.leave, shared.err = statedir.HoldStore(path); shared.err == nil {
			shared.Store, shared.err = fetch.Open(fetch.Config{
				Dir: path, Remote: remote, Blobs: r.blobs, Memory: r.memory, Readers: &r.readers,
				Deadline: deadline(req), Env: Environment(req),
				Credential: GivenFor(req.Remote, "", "").gitCredentials(l.Login, Environment(req)),
				Host:       shared.host.store(dir), Notice: notice, Log: r.log.With(zap.String("remote", remote.URL())),
			})
		}
		close(shared.opened)
	}
	if shared.err != nil {
		release()
		return nil, nil, shared.err
	}
	shared.Forgive() // objects that were refused before may be requested again, because a new mount uses the store
	return shared.Store, release, nil
}

// relay returns the relay at the URL at, or nil if the URL is "". All stores share one object for a URL, so that each
// failure of the relay is noticed once.
func (r *Remotes) relay(at string) (*via.Relay, error) {
	if at == "" {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.relays[at]; known != nil {
		return known, nil
	}
	relay, err := via.New(at)
	if err != nil {
		return nil, &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(),
			Hint: "artifactfs mount --help"}
	}
	r.relays[at] = relay
	return relay, nil
}

// release records that one mount has stopped using the store shared. After the last mount, it closes the store. It does
// not hold r.mu then, because closing waits for the disk.
func (r *Remotes) release(key storeKey, shared *sharedStore) {
	r.mu.Lock()
	shared.users--
	last := shared.users == 0
	if last {
		delete(r.stores, key)
	}
	r.mu.Unlock()
	if last && shared.Store != nil {
		if err := shared.Close(); err != nil {
			r.log.Warn("close store", zap.Error(err))
		}
	}
	if last && shared.leave != nil {
		shared.leave()
	}
	if last {
		r.releaseHost(key.from, shared.host)
	}
}

// Session opens the session remote that a request names. remote is nil if the session has no session remote, or the
// embedded one. kind is one of the constants of package control, or "" if the request names a URL. The token of the
// mounted remote is not sent to another host. The caller must close remote.
func (r *Remotes) Session(req control.MountRequest) (remote *thin.Remote, kind string, err error) {
	remote, _, kind, err = r.SessionLogin(req)
	return remote, kind, err
}

// SessionLogin opens the session remote that a request names, as Session does, and returns also the login that it uses.
// The caller must record a user of this login with HoldLogin.
func (r *Remotes) SessionLogin(req control.MountRequest) (remote *thin.Remote, l *Login, kind string, err error) {
	at, kind := SessionURL(req)
	if at == "" {
		return nil, nil, kind, nil
	}
	l = r.Login(GivenForSession(req, at))
	options := r.options(req, l)
	// the session remote may be the repository of a session whose daemon was killed
	options.BeforePush = session.BreakLocks
	far, err := transport.Open(at, options)
	if err != nil {
		return nil, nil, kind, fmt.Errorf("open session remote: %w", err)
	}
	return thin.New(far, req.Session, r.log), l, kind, nil
}

// tokenTime is the maximum time for which TryToken waits for the remote to accept or refuse a token.
const tokenTime = 15 * time.Second

// TryToken checks a token, or the token in a file, with a request for HEAD to the remote at the URL at, which has no
// password. It returns nil if the remote accepts the token within tokenTime.
func (r *Remotes) TryToken(ctx context.Context, at string, env transport.Environment, token, file string) error {
	l := transport.NewLogin(token, file)
	if _, err := l.Token(env); err != nil {
		return err
	}
	remote, err := transport.Open(at, transport.Options{Login: l, Env: env, Connect: tokenTime / 2,
		Stall: tokenTime, Log: r.log})
	if err != nil {
		return err
	}
	defer remote.Close()
	limited, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	_, err = remote.Refs(limited, []string{"HEAD"})
	return err
}
