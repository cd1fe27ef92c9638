package fetch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/internal/metrics"
)

// maxConverted is the size, in bytes, up to which contents are converted in memory. Git also converts larger files, but
// repositories hardly ever contain text files of that size. If a file is converted by a filter driver and in no other
// way, its contents are streamed, so they may be of any size.
const maxConverted = 512 << 20

// results are the cache keys under which the result of a conversion may be stored. They have the type of an object id.
type results struct {
	own    object.ID // key of the result for this mount and its settings, or of a result that depends on no settings
	shared object.ID // key of the result that all mounts with the same driver share; zero if there is none
}

// resultsOf returns the cache keys of the result of converting the blob at path by the rule r. The output of a filter
// driver may depend on the path, on the environment and on any settings, so it belongs to the mount. Only contents that
// the driver has put in the place of a git-lfs pointer, and that have the hash in the pointer, are shared.
func (v *View) resultsOf(id object.ID, r convert.Rule, path string) (k results) {
	d, ok := r.Driver()
	if !ok {
		// The prefix makes sure that the key differs from the id of every object.
		k.own = cacheKey("converted", id.String(), r.Key())
		return k
	}
	if d.Process == "" && !strings.Contains(d.Smudge, "%f") {
		path = "" // the result does not depend on the path, because the driver does not get it
	}
	k.own = cacheKey("driver", v.conversions.owner(), id.String(), r.Key(), path)
	if d.Shared != "" {
		k.shared = cacheKey("lfs", d.Shared, id.String(), r.Key())
	}
	return k
}

// cacheKey returns the key of the cache for a list of strings, of which only the last may contain zero bytes.
func cacheKey(parts ...string) object.ID {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	key, err := object.FromBytes(sum[:])
	if err != nil {
		panic(err) // cannot happen, because a SHA-256 sum has the length of an id
	}
	return key
}

// result returns the stored result of a conversion. If there are two, it returns that of the mount, so that a file does
// not change. It returns false if none is stored.
func (s *storage) result(k results) (Content, bool) {
	c, ok := s.content(k.own)
	if !ok && !k.shared.IsZero() {
		c, ok = s.content(k.shared)
	}
	return c, ok
}

// resultSize returns the size in bytes of the contents that result returns. It reads no file.
func (s *storage) resultSize(k results) (int64, bool) {
	n, ok := s.blobs.Size(k.own)
	if !ok && !k.shared.IsZero() {
		n, ok = s.blobs.Size(k.shared)
	}
	return n, ok
}

// converted returns the contents of b as git checkout would write them, by rule r.
func (v *View) converted(ctx context.Context, b Blob, r convert.Rule) (Content, error) {
	key := v.resultsOf(b.ID, r, b.Path)
	if c, ok := v.store.storage.result(key); ok {
		return c, nil
	}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", b.Path, err)
	}
	if _, ok := r.Driver(); ok || r.Iconv() != "" {
		return v.smudged(ctx, b, r, key)
	}
	c, err := v.openStored(ctx, b.ID, b.Path, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil || c.Size() > maxConverted {
		return c, err
	}
	defer c.Release()
	stored, err := wholeOf(c)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", b.Path, err)
	}
	content := r.Apply(b.ID, stored)
	err = v.store.storage.keep(odb.Object{ID: key.own, Type: object.Blob, Size: int64(len(content)), Data: content})
	return inMemory(content), err
}

// wholeOf reads all bytes of contents into memory.
func wholeOf(c Content) ([]byte, error) {
	content := make([]byte, c.Size())
	if _, err := c.ReadAt(content, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return content, nil
}

// smudge is the conversion of one blob by external programs, such as git-lfs. All readers that wait for its result
// share it. The conversion continues when these readers stop waiting, because most of it may be done by then. The
// fields below waiters do not change after the channel done is closed.
type smudge struct {
	by      *conversions // conversions of the mount whose programs convert the blob
	done    chan struct{}
	waiters atomic.Int32
	err     error
	left    bool   // whether the blob stays unconverted: an optional driver has failed, or the driver has changed nothing
	data    []byte // the converted contents if they are small; nil if they are large, and stored in the cache
}

// failed reports whether the conversion has no result that another mount could use.
func (m *smudge) failed() bool { return m.left || m.err != nil }

// smudges contains the conversions in progress, so that a blob is converted once for all mounts that share the result.
type smudges struct {
	mu      sync.Mutex
	running map[object.ID]*smudge // conversions in progress, by a cache key of their results
}

// join returns the conversion in progress with the given key. If there is none, join creates a conversion of the mount
// by and returns begun as true; the caller must then run the conversion and call end. The caller counts as a reader
// that waits, unless ahead is true, which means that no reader needs the result yet.
func (s *smudges) join(key object.ID, by *conversions, ahead bool) (m *smudge, begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.running[key]
	if !ok {
		m = &smudge{by: by, done: make(chan struct{})}
		s.running[key] = m
	}
	if !ahead {
		m.waiters.Add(1)
	}
	return m, !ok
}

// end removes a conversion from the map of those in progress, and wakes the readers that wait for the conversion.
func (s *smudges) end(key object.ID, m *smudge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, key)
	close(m.done)
}

// smudged returns the result of converting the blob b with external programs. It runs the programs unless the result is
// in the cache.
func (v *View) smudged(ctx context.Context, b Blob, r convert.Rule, k results) (Content, error) {
	ctx, cancel := v.untilClosed(ctx)
	defer cancel()
	flight := cmp.Or(k.shared, k.own)
	for {
		m, begun := v.smudge(b, r, k, flight, false)
		if begun {
			v.smudgeAhead(b.Path, r)
		}
		metrics.Charge(ctx, metrics.Converted, 0, 0)
		// A reader that stops waiting is no longer counted. When the count is zero, the filter driver may stop the
		// conversion.
		select {
		case <-m.done:
			m.waiters.Add(-1)
		case <-ctx.Done():
			m.waiters.Add(-1)
			return nil, ctx.Err()
		}
		switch {
		// The programs of another mount have failed, whose logins may differ. So this mount runs its own programs.
		case m.by != v.conversions && m.failed() && ctx.Err() == nil:
			flight = k.own
			continue
		// The contents are opened again, now without the driver. Checkout also writes unfiltered contents if a filter fails
		// that is not marked `required`.
		case m.left:
			v.conversions.filters.MarkUnfiltered(k.own)
			return v.Open(ctx, b)
		case errors.Is(m.err, filter.ErrStopped) && ctx.Err() == nil:
			// The mount that ran the conversion was unmounted, or no reader waited any more. The next iteration starts
			// a new conversion.
			continue
		case m.err != nil:
			return nil, fmt.Errorf("read %s: %w", b.Path, m.err)
		case m.data != nil:
			return inMemory(m.data), nil
		}
		if c, ok := v.store.storage.result(k); ok {
			return c, nil
		}
		return nil, fmt.Errorf("read %s: cache is too small: converted contents were evicted at once", b.Path)
	}
}

// smudge returns the conversion of b by the rule r that is in progress under the key flight. If there is none, smudge
// starts it and returns begun as true. The caller counts as a reader that waits, unless ahead is true.
func (v *View) smudge(b Blob, r convert.Rule, k results, flight object.ID, ahead bool) (m *smudge, begun bool) {
	s := v.store
	m, begun = s.smudges.join(flight, v.conversions, ahead)
	if !begun {
		return m, false
	}
	started := s.tasks.Start(func(ctx context.Context) {
		m.data, m.err = v.runPrograms(ctx, b, r, k, m, ahead)
		// If a driver is not marked `required` and fails, git uses the unfiltered contents.
		if d, ok := r.Driver(); ok && !d.Required && errors.Is(m.err, filter.ErrUnfiltered) {
			s.log.Warn("content stays unfiltered", zap.String("path", b.Path), zap.String("filter", d.Name), zap.Error(m.err))
			m.left = true
		}
		m.left = m.left || errors.Is(m.err, errUnchanged)
		s.smudges.end(flight, m)
	})
	if !started {
		m.err = ErrClosed
		s.smudges.end(flight, m)
	}
	return m, true
}

// errUnchanged means that a driver has returned its input. Programs such as git-lfs also do this if they fail and are
// configured to continue, so the output is not stored as the result of the driver.
var errUnchanged = errors.New("filter has returned its input unchanged")

// runPrograms converts contents with external programs and stores the result in the cache. If the result is small,
// runPrograms also returns its bytes; otherwise it returns nil. m is the conversion in progress, of which runPrograms
// is a part.
func (v *View) runPrograms(ctx context.Context, b Blob, r convert.Rule, k results, m *smudge,
	ahead bool) ([]byte, error) {
	// another conversion has stored the result since the caller searched the cache
	if c, ok := v.store.storage.result(k); ok {
		c.Release()
		return nil, nil
	}
	if v.conversions.filters == nil {
		return nil, errors.New("filter programs cannot run, because the view has none")
	}
	c, err := v.openStored(ctx, b.ID, b.Path, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil {
		return nil, err
	}
	defer c.Release()
	// If the contents are converted by a filter driver and in no other way, the driver reads the contents as a stream, so
	// they may be of any size. Other conversions read all of the contents into memory first.
	in := c
	if !r.Streams() && c.Size() <= maxConverted {
		content, err := wholeOf(c)
		if err != nil {
			return nil, err
		}
		content = r.Apply(b.ID, content)
		if name := r.Iconv(); name != "" && len(content) > 0 {
			encoded, ok, err := v.conversions.filters.Iconv(convert.IconvNames(name), content)
			if err != nil {
				return nil, err
			}
			if ok {
				content = encoded
			}
		}
		in = inMemory(content)
	}
	// The result is stored in the cache when it is complete, not before, because a driver may fail after it has written a
	// part.
	out := &spool{storage: v.store.storage}
	defer out.discard()
	d, ok := r.Driver()
	pointer, named := [sha256.Size]byte{}, false
	if !k.shared.IsZero() && in.Size() <= spoolOver {
		text, err := wholeOf(in)
		if err != nil {
			return nil, err
		}
		if pointer, named = convert.LFSPointer(text); named {
			out.sum = sha256.New()
		}
	}
	f := filter.File{
		Path: b.Path, Ref: v.checkout.ref, Treeish: hexOf(v.checkout.commit), BlobID: hexOf(b.ID), Content: in,
		Size: in.Size(), Out: out,
		Wanted: func() bool { return m.waiters.Load() > 0 }, Ahead: ahead,
	}
	switch {
	case !ok:
		_, err = io.Copy(out, io.NewSectionReader(in, 0, in.Size()))
	case d.Process != "":
		err = v.conversions.filters.Process(d.Process, f)
	default:
		err = v.conversions.filters.OneShot(d.Smudge, f)
	}
	if err != nil {
		return nil, err
	}
	if named && [sha256.Size]byte(out.sum.Sum(nil)) == pointer {
		return out.keep(k.shared)
	}
	if ok && out.file == nil && out.size == in.Size() {
		if text, err := wholeOf(in); err != nil || bytes.Equal(text, out.data) {
			return nil, cmp.Or(err, errUnchanged)
		}
	}
	return out.keep(k.own)
}

// hexOf returns an id in hexadecimal. It returns "" for the zero id.
func hexOf(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// spool is a writer for contents whose size is not known in advance. It keeps the contents in memory until they exceed
// spoolOver bytes, and then moves them to a file.
type spool struct {
	storage *storage
	// data holds the contents while their size is at most spoolOver bytes.
	data []byte
	// file holds the contents when they exceed spoolOver bytes; until then, file is nil.
	file *os.File
	// size is the number of bytes written so far.
	size int64
	sum  hash.Hash // hash of the bytes written so far; nil if it is not needed
}

var _ filter.Output = (*spool)(nil)

// Write appends p to the contents. The first write that makes them exceed spoolOver moves them to a file.
func (o *spool) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	if o.sum != nil {
		o.sum.Write(p)
	}
	if o.file == nil && o.size <= spoolOver {
		o.data = append(o.data, p...)
		return len(p), nil
	}
	if o.file == nil {
		f, err := o.storage.blobs.Spool(o.size)
		if err != nil {
			return 0, err
		}
		o.file = f
		if _, err := f.Write(o.data); err != nil {
			return 0, err
		}
		o.data = nil
	}
	return o.file.Write(p)
}

// Reset discards all contents written so far.
func (o *spool) Reset() error {
	o.discard()
	*o = spool{storage: o.storage, sum: o.sum}
	if o.sum != nil {
		o.sum.Reset()
	}
	return nil
}

// discard closes and removes the file if the contents were moved to one.
func (o *spool) discard() {
	if o.file != nil {
		o.file.Close()
		os.Remove(o.file.Name()) // the error is ignored, because the file may have been created without a name
		o.file = nil
	}
}

// keep stores the contents in the cache under the given key. It returns the contents if they are small, otherwise nil.
func (o *spool) keep(key object.ID) ([]byte, error) {
	if o.file == nil {
		data := o.data
		// The caller treats nil as large contents, so empty contents are returned as an empty slice that is not nil.
		if data == nil {
			data = []byte{}
		}
		return data, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, Data: data})
	}
	f := o.file
	o.file = nil // storage.keep closes the file, so discard must not
	return nil, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, File: f})
}
