package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session/cacheentry"
	"github.com/artifactfs/artifactfs/session/thin"
)

// maxEntries is the maximum size in bytes of the cache entries in a reply, as JSON.
const maxEntries = 8 << 20

// entries is the session remote whose cache entries a request reads or changes. The caller must close it.
type entries struct {
	store   *cacheentry.Store // nil if the embedded session remote does not exist yet; then it has no entries
	session string            // name of the session of the request; "" if it has none
	far     *thin.Remote      // nil for the embedded session remote
	close   func()
}

// CacheEntries answers requests on cache entries. Its methods are safe for concurrent use.
type CacheEntries struct{ Catalog *Catalog }

// entriesOf opens the session remote whose cache entries a request uses. The parameter of is the session's name, or a
// directory in its mount. The parameter at is the URL of a session remote, or "" for that of the session. If write is
// set, entries can be changed, and the embedded session remote of a mounted session is created if it does not exist.
func (c CacheEntries) entriesOf(ctx context.Context, of, at string, write bool) (entries, error) {
	if at != "" {
		return c.entriesOn(requestAt(of, at))
	}
	o, err := c.Catalog.openSession(ctx, of, write)
	if err != nil {
		return entries{}, err
	}
	if e, err := c.entriesOn(o.remoteRequest()); err != nil || e.far != nil {
		o.Close()
		return e, err
	}
	repo := o.Repo
	if write && o.mount != nil {
		repo, err = o.mount.Agent.Open(ctx)
	}
	switch {
	case err != nil:
	case repo != nil:
		return entries{store: &cacheentry.Store{Place: cacheentry.Embedded{Repo: repo}}, session: o.Session, close: o.Close},
			nil
	case write:
		err = fault.ErrNoCheckpoint
	}
	o.Close()
	return entries{session: o.Session, close: func() {}}, err
}

// entriesOn opens the session remote that a mount request names. The field far of the result is nil if this is the
// embedded one.
func (c CacheEntries) entriesOn(r control.MountRequest) (entries, error) {
	far, err := c.Catalog.openRemote(r)
	if err != nil || far == nil {
		return entries{}, err
	}
	place := cacheentry.Remote{Remote: far.Remote, Dir: c.Catalog.State}
	return entries{store: &cacheentry.Store{Place: place}, session: r.Session, far: far, close: func() { far.Close() }},
		nil
}

// explain returns err as an error for the user, which names the session remote if that has failed.
func (e entries) explain(verb, object string, err error) error {
	if e.far != nil && !cacheentry.Concerns(err) {
		err = fault.SessionRemote(e.far, err)
	}
	return fault.ExplainSessionAt(verb, object, err)
}

// user returns the user who changes entries: the one whom the server of the session remote has authenticated or,
// without such a server, sent, which is the name that the client has sent.
func (e entries) user(ctx context.Context, sent string) (string, error) {
	var remote *transport.Remote
	if e.far != nil {
		remote = e.far.Remote
	}
	who, err := userOf(ctx, remote, sent)
	return who.Actor, err
}

// entryOf converts a cache entry into the form of a reply.
func entryOf(e cacheentry.Entry) control.CacheEntry {
	return control.CacheEntry{Key: e.Key, Size: e.Size, Hash: e.Hash, Time: e.Time, Expires: e.Expires, Actor: e.Actor,
		Session: e.Session}
}

// CacheGet returns a cache entry, with its value unless the request asks only for the description.
func (c CacheEntries) CacheGet(ctx context.Context,
	r control.CacheGetRequest) (reply control.CacheGetReply, err error) {
	const verb = "cache get"
	e, err := c.entriesOf(ctx, r.Of, r.SessionRemote, false)
	if err != nil {
		return reply, fault.ExplainSessionAt(verb, r.Key, err)
	}
	defer e.close()
	if e.store == nil {
		return reply, fault.ExplainSessionAt(verb, r.Key, cacheentry.ErrNone)
	}
	var entry cacheentry.Entry
	switch {
	case r.Describe:
		entry, err = e.store.Describe(ctx, r.Key)
	case r.Output != "":
		entry, err = getInto(ctx, e.store, r.Key, r.Output)
	default:
		value := &inline{}
		entry, err = e.store.Get(ctx, r.Key, value)
		reply.Value = value.Bytes()
	}
	if err != nil {
		return control.CacheGetReply{}, e.explain(verb, r.Key, err)
	}
	reply.Entry = entryOf(entry)
	return reply, nil
}

// getInto writes the value of a cache entry to the file name, which is created if it does not exist.
func getInto(ctx context.Context, s *cacheentry.Store, key, name string) (e cacheentry.Entry, err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return e, err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	return s.Get(ctx, key, file)
}

// inline is a writer that collects a value for a reply. Write fails if the value is larger than control.MaxInlineValue.
type inline struct{ bytes.Buffer }

func (b *inline) Write(p []byte) (int, error) {
	if b.Len()+len(p) > control.MaxInlineValue {
		return 0, fmt.Errorf("value is larger than %d KiB: it can be returned only in a file", control.MaxInlineValue>>10)
	}
	return b.Buffer.Write(p)
}

// CachePut stores a cache entry.
func (c CacheEntries) CachePut(ctx context.Context,
	r control.CachePutRequest) (reply control.CacheChangeReply, err error) {
	const verb = "cache put"
	e, err := c.entriesOf(ctx, r.Of, r.SessionRemote, true)
	if err != nil {
		return reply, fault.ExplainSessionAt(verb, r.Key, err)
	}
	defer e.close()
	value := cacheentry.Value{Size: int64(len(r.Value)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(r.Value)), nil
	}}
	if r.File != "" {
		info, err := os.Stat(r.File)
		if err != nil {
			return reply, fault.ExplainSessionAt(verb, r.Key, err)
		}
		value = cacheentry.Value{Size: info.Size(), Open: func() (io.ReadCloser, error) { return os.Open(r.File) }}
	}
	who, err := e.user(ctx, r.Actor)
	if err != nil {
		return reply, e.explain(verb, r.Key, err)
	}
	entry, err := e.store.Put(ctx, cacheentry.PutRequest{
		Key: r.Key, Value: value, TTL: r.TTL, Expect: r.Expect, Actor: who, Session: e.session,
	})
	return e.changed(verb, r.Key, &entry, err)
}

// CacheDelete removes a cache entry.
func (c CacheEntries) CacheDelete(ctx context.Context,
	r control.CacheDeleteRequest) (reply control.CacheChangeReply, err error) {
	const verb = "cache delete"
	e, err := c.entriesOf(ctx, r.Of, r.SessionRemote, true)
	if err != nil {
		return reply, fault.ExplainSessionAt(verb, r.Key, err)
	}
	defer e.close()
	return e.changed(verb, r.Key, nil, e.store.Delete(ctx, r.Key, r.Expect))
}

// changed returns the reply to a request that has changed an entry, or that was refused because the entry has another
// value than the expected one. now is the entry after the change, or nil if it was removed. err is the error of the
// change.
func (e entries) changed(verb, key string, now *cacheentry.Entry, err error) (reply control.CacheChangeReply, _ error) {
	var conflict *cacheentry.ConflictError
	if errors.As(err, &conflict) {
		if now = nil; conflict.Present.Hash != "" {
			now = &conflict.Present
		}
	} else if err != nil {
		return reply, e.explain(verb, key, err)
	}
	reply.Done = conflict == nil
	if now != nil {
		entry := entryOf(*now)
		reply.Entry = &entry
	}
	return reply, nil
}

// CacheKeys lists cache entries.
func (c CacheEntries) CacheKeys(ctx context.Context, r control.CacheKeysRequest) (control.CacheKeysReply, error) {
	const verb = "cache keys"
	reply := control.CacheKeysReply{Entries: []control.CacheEntry{}}
	e, err := c.entriesOf(ctx, r.Of, r.SessionRemote, false)
	if err != nil {
		return reply, fault.ExplainSessionAt(verb, r.Prefix, err)
	}
	defer e.close()
	if e.store == nil {
		return reply, nil
	}
	l, err := e.store.List(ctx, r.Prefix, r.Expired)
	if err != nil {
		return reply, e.explain(verb, r.Prefix, err)
	}
	l.Entries = slices.DeleteFunc(l.Entries, func(e cacheentry.Entry) bool { return e.Key <= r.After })
	reply.Damaged = int64(l.Damaged)
	reply.Entries, err = entriesIn(l.Entries)
	reply.More = len(reply.Entries) < len(l.Entries)
	return reply, err
}

// entriesIn returns as many of the entries as fit into a reply, in the form of the reply.
func entriesIn(list []cacheentry.Entry) ([]control.CacheEntry, error) {
	some, size := []control.CacheEntry{}, 0
	for _, e := range list {
		text, err := json.Marshal(entryOf(e))
		if err != nil {
			return nil, err
		}
		if size += len(text) + 1; size > maxEntries {
			break
		}
		some = append(some, entryOf(e))
	}
	return some, nil
}

// CacheGC removes cache entries that have expired, and those beyond the limits of the request.
func (c CacheEntries) CacheGC(ctx context.Context, r control.CacheGCRequest) (control.CacheGCReply, error) {
	const verb = "cache gc"
	reply := control.CacheGCReply{Removed: []control.CacheEntry{}, DryRun: r.DryRun}
	e, err := c.entriesOf(ctx, r.Of, r.SessionRemote, !r.DryRun)
	if errors.Is(err, fault.ErrNoCheckpoint) { // the embedded session remote does not exist, so it has no entries
		return reply, nil
	}
	if err != nil {
		return reply, fault.ExplainSessionAt(verb, r.Of, err)
	}
	defer e.close()
	if e.store == nil {
		return reply, nil
	}
	done, err := e.store.GC(ctx, cacheentry.GCOptions{MaxSize: r.MaxSize, MaxAge: r.MaxAge, DryRun: r.DryRun})
	if err != nil {
		return reply, e.explain(verb, r.Of, err)
	}
	for _, removed := range done.Removed {
		reply.Bytes += removed.Size
	}
	reply.Count, reply.Damaged = int64(len(done.Removed)), int64(done.Damaged)
	reply.Kept, reply.Size = int64(done.Kept), done.Size
	reply.Removed, err = entriesIn(done.Removed)
	return reply, err
}
