// Package transport is a git protocol version 2 client over http(s), ssh, git:// and local processes.
//
// It promises few round trips: a fresh remote costs one connection, one capability discovery and then one
// request a command, and a connection once opened is kept for the next command. The first command may be sent ahead,
// beside the discovery (RefsAhead, FetchAhead). Several commands may run at once, each on a connection of its own. What it reads from a server is hostile until parsed: the parsers
// accept what the protocol allows and reject the rest, and nothing is allocated from a claimed size.
//
// Terms: an *exchange* is one request and its answer; a *lane* is a kept dialogue with one upload-pack process
// (ssh, git://, local), which serves one exchange after the other; a *spare* is a connection opened ahead of need, which
// the next exchange takes that would have to open one; a *stall* is a wait for bytes that has
// lasted for Options.Stall. A pack is not verified here: that is the work of who reads it.
//
// Retries: transport faults, 429 and 5xx, and only up to the first byte of a pack; what goes wrong later comes out
// of Pack.Read. A kept or spare connection that turns out to be dead is replaced once without counting as
// an attempt.
//
// Locks are leaves: none is held while another is taken, nor across a wait for network, disk or child process.
//
// The formats are those of git's Documentation/gitprotocol-{common,v2,http,pack}.txt.
package transport

import (
	"context"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

// Options say how a remote is reached. The zero value is usable.
type Options struct {
	Login      *Login        // sent as the password (or Bearer) to the remote's own host, http(s) only; nil: none
	Env        Environment   // of the programs that are run, and where their settings are read; nil: of this process
	Stall      time.Duration // a wait for bytes longer than this fails the exchange; default 30 s
	Connect    time.Duration // to open a connection; default 15 s
	Retries    int           // attempts after the first, on transport faults, 429 and 5xx
	Patience   time.Duration // no attempt begins later than this after the first; 0: whenever
	Ahead      *Ahead        // remembers who refuses commands sent ahead; nil: none is sent
	UploadPack string        // command for ssh and local remotes; default git-upload-pack
	Log        *zap.Logger   // may be nil
}

// Capabilities is what a server offers.
type Capabilities struct {
	Format     object.Format
	Filter     bool   // partial fetches
	Shallow    bool   // fetches of limited depth
	ObjectInfo bool   // sizes without contents
	RefInWant  bool   // wants by ref name
	Agent      string // the server's program and version, "" if it does not say
	unborn     bool   // ls-refs tells where an unborn HEAD points
}

// Ref is a name on the server.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // what an annotated tag points to in the end; zero for all others
	Target string    // the ref a symbolic ref points to, "" for all others
}

// Refs is the answer to a listing.
type Refs struct {
	List   []Ref
	Unborn string // where HEAD points if that ref does not exist yet (an empty repository), else ""
}

// FetchRequest asks for objects.
type FetchRequest struct {
	Wants  []object.ID
	Haves  []object.ID // commits that are here with all they reach; the remote leaves that out. It may know none of them
	Depth  int         // commits deep; 0 is all history
	Filter string      // such as "blob:none"; "" is everything
	Once   bool        // no second attempt, whatever Options.Retries says
}

// FetchResponse is a pack on its way. Pack must be closed; to close it before its end drops the connection.
// The context of the Fetch governs Pack too: when it ends, a blocked Read returns at once.
type FetchResponse struct {
	Shallow []object.ID // commits whose parents are not in the pack
	Pack    io.ReadCloser
}

// Stats counts since Open.
type Stats struct {
	Requests    int64 // HTTP requests, or commands on lanes
	RoundTrips  int64 // requests and connections opened
	BytesIn     int64
	BytesOut    int64
	Connections int64         // opened
	Quiet       time.Duration // longest wait for a byte that is under way
	LastError   string
	LastErrorAt time.Time
}

// Open reads the URL of a remote: http, https, ssh, git or file URL, scp-like host:path, or a local path. It
// touches neither network nor disk.
func Open(rawURL string, o Options) (*Remote, error) {
	ep, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return newRemote(ep, o), nil
}

// URL is the remote's URL without user or secret of a http URL, password or query.
func (r *Remote) URL() string { return r.endpoint.String() }

// Capabilities asks the server once and then remembers. ErrNoV2 if it does not speak protocol version 2.
func (r *Remote) Capabilities(ctx context.Context) (Capabilities, error) {
	return r.capabilities(ctx)
}
