package control

import (
	"context"
	"path/filepath"
	"time"
)

// CacheEntries is a Handler that reads and changes the cache entries of session remotes.
type CacheEntries interface {
	// CacheGet returns an entry.
	CacheGet(ctx context.Context, r CacheGetRequest) (CacheGetReply, error)
	// CachePut stores an entry, unless the present entry does not have the expected hash.
	CachePut(ctx context.Context, r CachePutRequest) (CacheChangeReply, error)
	// CacheDelete removes an entry, unless it does not have the expected hash.
	CacheDelete(ctx context.Context, r CacheDeleteRequest) (CacheChangeReply, error)
	CacheKeys(ctx context.Context, r CacheKeysRequest) (CacheKeysReply, error)
	// CacheGC removes entries that have expired, and those beyond the limits of the request.
	CacheGC(ctx context.Context, r CacheGCRequest) (CacheGCReply, error)
}

// MaxInlineValue is the maximum size in bytes of a cache entry's value in a request or reply. Larger values are passed
// in files.
const MaxInlineValue = 512 << 10

// CacheEntry describes a cache entry.
type CacheEntry struct {
	Key     string    `json:"key"`              // key of the entry
	Size    int64     `json:"size"`             // size of the value in bytes
	Hash    string    `json:"sha256"`           // SHA-256 of the value, as hexadecimal digits
	Time    time.Time `json:"time"`             // time at which the value was stored
	Expires time.Time `json:"expires,omitzero"` // time from which the entry counts as missing; missing: it does not expire
	// user or program that has stored the value, as it has stated; not verified
	Actor string `json:"actor"`
	// session in which the value was stored, as the program that stored it has stated; not verified
	Session string `json:"session,omitempty"`
}

// CacheGetRequest requests a cache entry. It fails with the code not-found if there is no entry, or if the entry has
// expired.
type CacheGetRequest struct {
	// directory of a mount, or name of a session; "": none, if SessionRemote is set
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"` // session remote that has the entry; "": the one of the session
	Key           string `json:"key"`                      // key of the entry
	Describe      bool   `json:"describe,omitempty"`       // return only the description
	// Output is the absolute path of a file to which the value is written; "": the value is returned in the reply.
	Output string `json:"output,omitempty"`
}

// CacheGetReply is the answer to a CacheGetRequest. Its Entry is the output of `session cache get --json`.
type CacheGetReply struct {
	Entry CacheEntry `json:"entry"`           // description of the entry
	Value []byte     `json:"value,omitempty"` // the value, in base64; missing if the request has Describe or Output
}

// CachePutRequest requests that a cache entry is stored.
type CachePutRequest struct {
	// directory of a mount, or name of a session; "": none, if SessionRemote is set
	Of string `json:"of"`
	// session remote that gets the entry; "": the one of the session
	SessionRemote string `json:"session_remote,omitempty"`
	Key           string `json:"key"`             // key of the entry
	Value         []byte `json:"value,omitempty"` // the value, in base64; not used with File
	// File is the absolute path of a file with the value, which must not change during the request; "": the value is in
	// Value.
	File string        `json:"file,omitempty"`
	TTL  time.Duration `json:"ttl_ns,omitempty"` // time after which the entry expires; 0: it does not expire
	// Expect is the SHA-256 that the present value must have, "none" if there must be no entry, or "" for any entry or
	// none.
	Expect string `json:"expect,omitempty"`
	// user who stores the entry, unless the server knows the user; "": the user of the daemon
	Actor string `json:"actor,omitempty"`
}

// CacheDeleteRequest requests that a cache entry is removed. It fails with the code not-found if there is no entry.
type CacheDeleteRequest struct {
	// directory of a mount, or name of a session; "": none, if SessionRemote is set
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"` // session remote that has the entry; "": the one of the session
	Key           string `json:"key"`                      // key of the entry
	Expect        string `json:"expect,omitempty"`         // SHA-256 that the present value must have; "": any
}

// CacheChangeReply is the output of `session cache put --json`, `session cache cas --json` and `session cache delete
// --json`.
type CacheChangeReply struct {
	Done bool `json:"done"` // the entry was stored or removed; false: the present value is not the expected one
	// Entry is the present entry: the new one, or one whose value is not the expected one. null: there is no entry.
	Entry *CacheEntry `json:"entry"`
}

// CacheKeysRequest requests a list of cache entries.
type CacheKeysRequest struct {
	// directory of a mount, or name of a session; "": none, if SessionRemote is set
	Of string `json:"of"`
	// session remote whose entries are listed; "": the one of the session
	SessionRemote string `json:"session_remote,omitempty"`
	Prefix        string `json:"prefix,omitempty"`  // list only the entries whose keys begin with this text
	Expired       bool   `json:"expired,omitempty"` // list also the entries that have expired
	After         string `json:"after,omitempty"`   // list only the entries whose keys sort after this text
}

// CacheKeysReply is the output of `session cache keys --json`.
type CacheKeysReply struct {
	Entries []CacheEntry `json:"entries"`        // entries, sorted by key
	Damaged int64        `json:"damaged"`        // number of refs of entries that do not contain an entry
	More    bool         `json:"more,omitempty"` // there are more entries; a request with After lists them
}

// CacheGCRequest requests that cache entries which have expired are removed.
type CacheGCRequest struct {
	// directory of a mount, or name of a session; "": none, if SessionRemote is set
	Of string `json:"of"`
	// session remote whose entries are removed; "": the one of the session
	SessionRemote string `json:"session_remote,omitempty"`
	// remove the oldest entries beyond this number of bytes; 0: no limit
	MaxSize int64 `json:"max_size,omitempty"`
	// remove the entries that were stored longer ago than this; 0: no limit
	MaxAge time.Duration `json:"max_age_ns,omitempty"`
	DryRun bool          `json:"dry_run"` // remove nothing, and return the entries that would be removed
}

// CacheGCReply is the output of `session cache gc --json`.
type CacheGCReply struct {
	Removed []CacheEntry `json:"removed"` // entries that were or would be removed, oldest first; at most 8 MiB of them
	Count   int64        `json:"count"`   // number of entries that were or would be removed
	Bytes   int64        `json:"bytes"`   // size of their values in bytes
	Damaged int64        `json:"damaged"` // number of removed refs that did not contain an entry
	Kept    int64        `json:"kept"`    // number of entries that stay
	Size    int64        `json:"size"`    // size in bytes of the values of the entries that stay
	DryRun  bool         `json:"dry_run"` // nothing was removed
}

// needEntries returns an error unless the parameter of names a session or mount, or remote is a session remote.
func needEntries(of, remote string) error {
	if of == "" && remote != "" {
		of = "s" // use a valid name in place of "", because only the session remote must be checked
	}
	return needAt(of, remote)
}

func (r CacheGetRequest) validate() error {
	if r.Output != "" && !filepath.IsAbs(r.Output) {
		return badRequest("output %q is not absolute", r.Output)
	}
	return needEntries(r.Of, r.SessionRemote)
}

func (r CachePutRequest) validate() error {
	switch {
	case r.File != "" && (!filepath.IsAbs(r.File) || len(r.Value) > 0):
		return badRequest("want either a value or the absolute path of a file, got the file %q", r.File)
	case len(r.Value) > MaxInlineValue:
		return badRequest("value has %d bytes, limit in a request is %d", len(r.Value), MaxInlineValue)
	case r.TTL < 0:
		return badRequest("ttl_ns is negative")
	}
	return needEntries(r.Of, r.SessionRemote)
}

func (r CacheDeleteRequest) validate() error { return needEntries(r.Of, r.SessionRemote) }
func (r CacheKeysRequest) validate() error   { return needEntries(r.Of, r.SessionRemote) }

func (r CacheGCRequest) validate() error {
	if r.MaxSize < 0 || r.MaxAge < 0 {
		return badRequest("limit is negative")
	}
	return needEntries(r.Of, r.SessionRemote)
}

// workCacheEntry calls the handler's method for operation o, which must be an operation of the interface CacheEntries.
func (s *Server) workCacheEntry(ctx context.Context, o op, args any) (any, error) {
	h, ok := s.handler.(CacheEntries)
	if !ok {
		return nil, unsupported("unknown operation %.40q", o)
	}
	switch o {
	case opCacheGet:
		return h.CacheGet(ctx, args.(CacheGetRequest))
	case opCachePut:
		return h.CachePut(ctx, args.(CachePutRequest))
	case opCacheDelete:
		return h.CacheDelete(ctx, args.(CacheDeleteRequest))
	case opCacheKeys:
		return h.CacheKeys(ctx, args.(CacheKeysRequest))
	case opCacheGC:
		return h.CacheGC(ctx, args.(CacheGCRequest))
	}
	return nil, unsupported("unknown operation %.40q", o)
}

// CacheClient sends requests for cache entries.
type CacheClient struct{ client *Client }

// NewCacheClient returns a CacheClient that sends its requests by client.
func NewCacheClient(client *Client) CacheClient { return CacheClient{client} }

// Get returns a cache entry.
func (c CacheClient) Get(ctx context.Context, r CacheGetRequest) (CacheGetReply, error) {
	return call[CacheGetReply](ctx, c.client, opCacheGet, r, nil)
}

// Put stores a cache entry. If the present entry is not as expected, it changes nothing and returns the present entry.
func (c CacheClient) Put(ctx context.Context, r CachePutRequest) (CacheChangeReply, error) {
	return call[CacheChangeReply](ctx, c.client, opCachePut, r, nil)
}

// Delete removes a cache entry. If the present entry is not as expected, it changes nothing and returns the present
// entry.
func (c CacheClient) Delete(ctx context.Context, r CacheDeleteRequest) (CacheChangeReply, error) {
	return call[CacheChangeReply](ctx, c.client, opCacheDelete, r, nil)
}

// Keys lists cache entries. If the reply has More, a request with the last key as After lists further entries.
func (c CacheClient) Keys(ctx context.Context, r CacheKeysRequest) (CacheKeysReply, error) {
	return call[CacheKeysReply](ctx, c.client, opCacheKeys, r, nil)
}

// GC removes cache entries that have expired, and those beyond the limits of the request.
func (c CacheClient) GC(ctx context.Context, r CacheGCRequest) (CacheGCReply, error) {
	return call[CacheGCReply](ctx, c.client, opCacheGC, r, nil)
}
