// Package transport is a git protocol version 2 client over http(s), ssh, git:// and local
// processes.
//
// It needs few round trips: a fresh remote costs one connection, one capability discovery and then
// one request for each command, and an open connection is kept for the next command. The first
// command may be sent ahead, at the same time as the discovery (RefsAhead, FetchAhead). Several
// commands may run at once, each on a connection of its own. Input from servers is not trusted: the
// parsers accept what the protocol allows and reject the rest, and no claimed size is allocated.
//
// Terms: an *exchange* is one request and its answer; a *carrier* is a way to make exchanges with a
// server: *web* (HTTP) or *lanes*; a *lane* is a kept connection with one upload-pack process (ssh,
// git://, local), which serves one exchange after the other; a *spare* is a connection that was
// opened before it is needed, for the next exchange that would have to open one; a *stall* is a
// wait for bytes that has lasted for Options.Stall. Packs are not verified here, but by their
// reader.
//
// Retries: for transport faults, 429 and 5xx, and only before the first byte of a pack; Pack.Read
// returns later faults. A kept or spare connection that turns out to be dead is replaced once
// without counting as an attempt.
//
// Locks are leaves: none is held while another is acquired, nor while waiting for network, disk or
// a child process.
//
// The formats are those of git's Documentation/gitprotocol-{common,v2,http,pack}.txt. The package
// transport/endpoint parses URLs and settings.
package transport

import (
	"context"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// Environment is the environment of the user's programs; see endpoint.Environment.
type Environment = endpoint.Environment

// Options configure a Remote. The zero value is usable.
type Options struct {
	Login      *Login        // sent as the password (or Bearer) to the remote's own host, http(s) only; nil: none
	Env        Environment   // environment of the programs that are run and of their settings; nil: that of this process
	Stall      time.Duration // a wait for bytes longer than this fails the exchange; default 30 s
	Connect    time.Duration // time limit for opening a connection; default 15 s
	Retries    int           // attempts after the first, on transport faults, 429 and 5xx
	Patience   time.Duration // how long after the first attempt another may begin; 0: no limit
	Ahead      *Ahead        // records which servers refuse commands sent ahead; nil: none is sent ahead
	UploadPack string        // command for ssh and local remotes; default git-upload-pack
	Log        *zap.Logger   // may be nil
}

// Capabilities describes what a server supports.
type Capabilities struct {
	Format     object.Format
	Filter     bool   // partial fetches
	Shallow    bool   // fetches of limited depth
	ObjectInfo bool   // sizes without contents
	RefInWant  bool   // wants by ref name
	Agent      string // the server's program and version, "" if it does not say
	unborn     bool   // ls-refs returns the target of an unborn HEAD
}

// Ref is a ref of the server.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // the object behind an annotated tag; zero for all others
	Target string    // the target of a symbolic ref, "" for all others
}

// Refs is a listing of refs.
type Refs struct {
	List   []Ref
	Unborn string // the target of HEAD if that ref does not exist yet (an empty repository), else ""
}

// FetchRequest describes the objects to fetch.
type FetchRequest struct {
	Wants []object.ID
	// Haves are commits that the caller has with everything they reach, and which the remote leaves out. The remote may
	// know none of them.
	Haves  []object.ID
	Depth  int    // number of commits of history; 0: all
	Filter string // such as "blob:none"; "" is everything
	Once   bool   // no second attempt, whatever Options.Retries says
}

// FetchResponse is a pack that is being received. Pack must be closed; closing it before its end
// drops the connection. The context of Fetch applies to Pack too: when it ends, a blocked Read
// returns at once.
type FetchResponse struct {
	Shallow []object.ID // commits whose parents are not in the pack
	Pack    io.ReadCloser
}

// Stats are counts since Open.
type Stats struct {
	Requests    int64 // HTTP requests, or commands on lanes
	RoundTrips  int64 // requests and connections opened
	BytesIn     int64
	BytesOut    int64
	Connections int64         // opened
	Quiet       time.Duration // longest of the current waits for a byte
	LastError   string
	LastErrorAt time.Time
}

// Open returns the Remote for a URL: http, https, ssh, git or file URL, scp-like host:path, or a
// local path. It uses neither network nor disk.
func Open(rawURL string, o Options) (*Remote, error) {
	ep, err := endpoint.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	return newRemote(ep, o), nil
}

// URL returns the remote's URL without password and query, and for http without user.
func (r *Remote) URL() string { return r.endpoint.String() }

// Capabilities returns the server's capabilities, which it requests once. It returns ErrNoV2 if the
// server does not speak protocol version 2.
func (r *Remote) Capabilities(ctx context.Context) (Capabilities, error) {
	return r.capabilities(ctx)
}
