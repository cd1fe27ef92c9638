package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// maxConverted is the size, in bytes, up to which contents are converted in memory. Git also converts larger files, but
// repositories hardly ever contain text files of that size. If a file is converted by a filter driver and in no other way, its
// contents are streamed, so they may be of any size.
const maxConverted = 512 << 20

// convertedID returns the cache key of the result of converting the blob at path by the rule r. The key has the type of an object id.
func convertedID(id object.ID, r convert.Rule, path string) object.ID {
	// r.Key describes the conversion. The prefix makes sure that the key differs from the id of every object.
	sum := sha256.Sum256([]byte("converted\x00" + id.String() + "\x00" + r.Key(path)))
	key, err := object.FromBytes(sum[:])
	if err != nil {
		panic(err) // cannot happen, because a SHA-256 sum has the length of an id
	}
	return key
}

// converted returns the contents of b as git checkout would write them, by rule r.
func (v *View) converted(ctx context.Context, b Blob, r convert.Rule) (Content, error) {
	key := convertedID(b.ID, r, b.Path)
	if c, ok := v.store.storage.content(key); ok {
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
	err = v.store.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: int64(len(content)), Data: content})
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

// smudge is the conversion of one blob by external programs, such as git-lfs. All readers that wait for its result share it. The
// conversion continues when these readers stop waiting, because most of it may be done by then. The fields err and data do not
// change after the channel done is closed.
type smudge struct {
	done    chan struct{}
	waiters atomic.Int32
	err     error
	refused bool   // true if an optional filter driver refused to convert the blob
	data    []byte // the converted contents if they are small; nil if they are large, and stored in the cache
}

// smudges contains the conversions in progress, so that a blob is converted once for all mounts that show the blob.
type smudges struct {
	mu      sync.Mutex
	running map[object.ID]*smudge // conversions in progress, by the cache key of their results
}

// join returns the conversion in progress with the given key. If there is none, join creates a conversion and returns begun as
// true; the caller must then run the conversion and call end. The caller counts as a reader that waits, unless ahead is true,
// which means that no reader needs the result yet.
func (s *smudges) join(key object.ID, ahead bool) (m *smudge, begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.running[key]
	if !ok {
		m = &smudge{done: make(chan struct{})}
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

// smudged returns the result of converting the blob b with external programs. It runs the programs unless the result is in the cache.
func (v *View) smudged(ctx context.Context, b Blob, r convert.Rule, key object.ID) (Content, error) {
	ctx, cancel := v.untilClosed(ctx)
	defer cancel()
	for {
		m, begun := v.smudge(b, r, key, false)
		if begun {
			v.smudgeAhead(b.Path, r)
		}
		metrics.Charge(ctx, metrics.Converted, 0, 0)
		// A reader that stops waiting is no longer counted. When the count is zero, the filter driver may stop the conversion.
		select {
		case <-m.done:
			m.waiters.Add(-1)
		case <-ctx.Done():
			m.waiters.Add(-1)
			return nil, ctx.Err()
		}
		switch {
		// The contents are opened again, now without the driver. Checkout also writes unfiltered contents if a filter fails that
		// is not marked `required`.
		case m.refused:
			v.refuse(key)
			return v.Open(ctx, b)
		case errors.Is(m.err, filter.ErrStopped) && ctx.Err() == nil:
			continue // the mount that ran the conversion was unmounted or lost its last reader, so the next iteration starts a new conversion
		case m.err != nil:
			return nil, fmt.Errorf("read %s: %w", b.Path, m.err)
		case m.data != nil:
			return inMemory(m.data), nil
		}
		if c, ok := v.store.storage.content(key); ok {
			return c, nil
		}
		return nil, fmt.Errorf("read %s: converted contents were evicted at once: the cache is too small", b.Path)
	}
}

// refuse records that an optional filter driver refused to convert a blob. key is the cache key of the conversion's result.
func (v *View) refuse(key object.ID) {
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	if v.rules.refused == nil {
		v.rules.refused = map[object.ID]bool{}
	}
	v.rules.refused[key] = true
}

// smudge returns the conversion of b by the rule r that is in progress. If there is none, smudge starts it and returns begun as
// true. The caller counts as a reader that waits, unless ahead is true.
func (v *View) smudge(b Blob, r convert.Rule, key object.ID, ahead bool) (m *smudge, begun bool) {
	s := v.store
	m, begun = s.smudges.join(key, ahead)
	if !begun {
		return m, false
	}
	started := s.tasks.Start(func(ctx context.Context) {
		m.data, m.err = v.runPrograms(ctx, b, r, key, m, ahead)
		// If a driver is not marked `required` and fails, git uses the unfiltered contents.
		if d, ok := r.Driver(); ok && !d.Required && errors.Is(m.err, filter.ErrUnfiltered) {
			s.log.Warn("content stays unfiltered", zap.String("path", b.Path), zap.String("filter", d.Name), zap.Error(m.err))
			m.refused = true
		}
		s.smudges.end(key, m)
	})
	if !started {
		m.err = ErrClosed
		s.smudges.end(key, m)
	}
	return m, true
}

// runPrograms converts contents with external programs and stores the result in the cache under key. If the result is small,
// runPrograms also returns its bytes; otherwise it returns nil. m is the conversion in progress, of which runPrograms is a part.
func (v *View) runPrograms(ctx context.Context, b Blob, r convert.Rule, key object.ID, m *smudge, ahead bool) ([]byte, error) {
	if c, ok := v.store.storage.content(key); ok { // another conversion has stored the result since the caller searched the cache
		c.Release()
		return nil, nil
	}
	if v.conversions.programs == nil {
		return nil, errors.New("filters cannot run for this view")
	}
	c, err := v.openStored(ctx, b.ID, b.Path, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil {
		return nil, err
	}
	defer c.Release()
	// If the contents are converted by a filter driver and in no other way, the driver reads the contents as a stream, so they
	// may be of any size. Other conversions read all of the contents into memory first.
	in := c
	if !r.Streams() && c.Size() <= maxConverted {
		content, err := wholeOf(c)
		if err != nil {
			return nil, err
		}
		content = r.Apply(b.ID, content)
		if name := r.Iconv(); name != "" && len(content) > 0 {
			encoded, ok, err := v.conversions.programs.Iconv(convert.IconvNames(name), content)
			if err != nil {
				return nil, err
			}
			if ok {
				content = encoded
			}
		}
		in = inMemory(content)
	}
	// The result is stored in the cache when it is complete, not before, because a driver may fail after it has written a part.
	out := &spool{storage: v.store.storage}
	defer out.discard()
	d, ok := r.Driver()
	f := filter.File{
		Path: b.Path, Ref: v.checkout.ref, Treeish: hexOf(v.checkout.commit), BlobID: hexOf(b.ID), Content: in, Size: in.Size(), Out: out,
		Wanted: func() bool { return m.waiters.Load() > 0 }, Ahead: ahead,
	}
	switch {
	case !ok:
		_, err = io.Copy(out, io.NewSectionReader(in, 0, in.Size()))
	case d.Process != "":
		err = v.conversions.programs.Process(d.Process, f)
	default:
		err = v.conversions.programs.OneShot(d.Smudge, f)
	}
	if err != nil {
		return nil, err
	}
	return out.keep(key)
}

// hexOf returns an id in hexadecimal. It returns "" for the zero id.
func hexOf(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// spool is a writer for contents whose size is not known in advance. It keeps the contents in memory until they exceed spoolOver
// bytes, and then moves them to a file.
type spool struct {
	storage *storage
	// data holds the contents while their size is at most spoolOver bytes.
	data []byte
	// file holds the contents when they exceed spoolOver bytes; until then, file is nil.
	file *os.File
	// size is the number of bytes written so far.
	size int64
}

var _ filter.Output = (*spool)(nil)

// Write appends p to the contents. The first write that makes them exceed spoolOver moves them to a file.
func (o *spool) Write(p []byte) (int, error) {
	o.size += int64(len(p))
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
	*o = spool{storage: o.storage}
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
		// A result of nil means that the contents are large. Therefore empty contents are returned as an empty slice that is not nil.
		if data == nil {
			data = []byte{}
		}
		return data, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, Data: data})
	}
	f := o.file
	o.file = nil // the method keep of storage closes the file
	return nil, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, File: f})
}
