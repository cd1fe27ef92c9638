// Package transport is a git protocol version 2 client over http(s), ssh, git:// and local processes.
//
// A new Remote needs one connection, one request for the capabilities (the discovery), and then one request for each
// command. An open connection is kept for the next command. The first command may be sent at the same time as the
// discovery (RefsAhead, FetchAhead). Several commands may run at once, each on its own connection. Servers are not
// trusted: the parsers accept what the protocol allows and reject the rest, and the size that a message claims to have
// does not determine how much memory is allocated.
//
// Terms: an *exchange* is one request and its answer. A *carrier* makes exchanges over one kind of connection: *web*
// over HTTP, *lanes* over ssh, git:// and pipes to local processes. A *lane* is a connection to one upload-pack
// process, which serves one exchange after the other. A *spare* is a connection that was opened before it is needed,
// for the next exchange that would have to open one. A *stall* is a wait for bytes that is longer than Options.Stall.
// This package does not verify packs; the reader of a pack does.
//
// Retries: an exchange is repeated after transport faults, status 429 and status 5xx, but only before the first byte of
// a pack. Pack.Read returns later faults. If a kept or spare connection turns out to be dead, the exchange is repeated
// once on a new connection, which does not count as a retry.
//
// Locks: no goroutine acquires a lock while it holds another, or waits for the network, the disk or a child process
// while it holds one.
//
// The formats are those of git's Documentation/gitprotocol-{common,v2,http,pack}.txt. The package
// git/transport/endpoint parses URLs and settings.
package transport

import (
	"context"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/git/transport/via"
)

// Environment is the environment of the programs that the user has configured; see endpoint.Environment.
type Environment = endpoint.Environment

// Options configures a Remote. The zero value is usable.
type Options struct {
	// token for the remote's own host, sent over http(s) only, as the password or as Bearer; nil if there is none
	Login *Login
	// environment of child processes, and the source of settings; nil means the environment of this process
	Env        Environment
	Stall      time.Duration // an exchange fails if it waits for bytes longer than this; default 30 s
	Connect    time.Duration // time limit for opening a connection; default 15 s
	Retries    int           // number of retries after transport faults, status 429 and 5xx
	Patience   time.Duration // time after the first attempt in which a retry may begin; 0 means no limit
	Ahead      *Ahead        // records which servers refuse commands sent ahead; if nil, no command is sent ahead
	Via        *via.Relay    // relay through which a remote over http(s) is reached, except for pushes; nil: none
	UploadPack string        // the server's upload-pack command, for ssh and local remotes; default git-upload-pack
	Log        *zap.Logger   // may be nil
	// BeforePush is called before each push to a repository in a directory of this host, with the directory; may be nil.
	BeforePush func(dir string) error
	// BundleDir returns the directory in which a bundle is unpacked; the parameter url is the URL of the bundle. If
	// BundleDir is nil, bundles are not supported.
	BundleDir func(url string) string
}

// filterBlobs is the filter of fetches without contents.
const filterBlobs = "blob:none"

// Capabilities lists the features that a server supports.
type Capabilities struct {
	Format     object.Format
	Filter     bool   // the server supports fetch filters, and has not refused blob:none
	Shallow    bool   // the server supports fetches of limited depth
	ObjectInfo bool   // the server can report sizes of objects without their contents
	RefInWant  bool   // the server accepts ref names as wants
	Agent      string // the server's program and version; "" if the server does not state them
	unborn     bool   // ls-refs reports the target of a HEAD whose branch does not exist yet
}

// Ref is one ref of the server.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // the object that an annotated tag points to; zero for all other refs
	Target string    // the target of a symbolic ref; "" for all other refs
}

// Refs is a listing of refs.
type Refs struct {
	List   []Ref
	Unborn string // the target of HEAD if that branch does not exist yet (empty repository); otherwise ""
}

// FetchRequest describes the objects to fetch.
type FetchRequest struct {
	Wants []object.ID
	// Haves lists commits that the caller has, together with everything that is reachable from these commits. The server
	// leaves all of these objects out of the pack. A commit that the server does not have is ignored.
	Haves  []object.ID
	Depth  int    // number of commits of history; 0 means all commits
	Filter string // filter such as "blob:none"; "" means no filter
	Once   bool   // whether to make no retries, regardless of Options.Retries
	// Tags asks the server to add the annotated tags of the commits that it sends. A server may ignore this.
	Tags bool
}

// FetchResponse is a pack that is being received. The caller must close Pack; closing it before its end drops the
// connection. The context of Fetch also applies to Pack: when the context ends, a Read that is blocked returns.
type FetchResponse struct {
	Shallow []object.ID // commits whose parents are not in the pack
	// whether the answer comes from a relay; if it ends early, the same request is sent to the git server
	Relayed bool
	// Unfiltered reports that the server has refused the filter of the request, and sends all objects.
	Unfiltered bool
	Pack       io.ReadCloser
}

// Stats are counters since Open.
type Stats struct {
	Requests    int64 // HTTP requests, and commands on other carriers
	RoundTrips  int64 // number of requests and of connections opened
	BytesIn     int64
	BytesOut    int64
	Connections int64         // number of connections opened
	Quiet       time.Duration // longest time for which a read that is in progress has waited for a byte
	// LastError is the text of the last error, or "" if there was none.
	LastError   string
	LastErrorAt time.Time
	Relay       *via.Usage // use of the relay; nil if there is no relay
}

// Open returns the Remote for a URL: an http, https, ssh, git or file URL, an scp-like host:path, or a local path. Open
// uses neither the network nor the disk.
func Open(rawURL string, o Options) (*Remote, error) {
	ep, err := endpoint.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	return newRemote(ep, o), nil
}

// URL returns the remote's URL without the password and the query. For HTTP, the user is also removed.
func (r *Remote) URL() string { return r.endpoint.String() }

// Capabilities returns the server's capabilities, and requests them at the first call. It returns ErrNoV2 if the server
// does not speak protocol version 2.
func (r *Remote) Capabilities(ctx context.Context) (Capabilities, error) {
	caps, err := r.capabilities(ctx)
	caps.Filter = caps.Filter && !r.refusesFilter.Load()
	return caps, err
}
