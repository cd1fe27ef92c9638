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

// maxConverted is the size, in bytes, up to which contents are converted. Git converts larger ones
// too, but text of that size is not found in repositories. Contents that only a driver converts may
// be of any size.
const maxConverted = 512 << 20

// convertedID returns the key in the cache of the converted form of the blob at path.
func convertedID(id object.ID, r convert.Rule, path string) object.ID {
	// r.Key describes the conversion. The prefix keeps the key apart from the ids of objects.
	sum := sha256.Sum256([]byte("converted\x00" + id.String() + "\x00" + r.Key(path)))
	key, err := object.FromBytes(sum[:])
	if err != nil {
		panic(err) // a SHA-256 sum has the length of an id
	}
	return key
}

// converted returns contents as git checkout would write them.
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
	return memoryContent(content), err
}

// wholeOf returns all bytes of contents in memory.
func wholeOf(c Content) ([]byte, error) {
	content := make([]byte, c.Size())
	if _, err := c.ReadAt(content, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return content, nil
}

// smudge is the conversion of one blob by programs, shared by all readers that wait for its result. It continues when these
// readers leave, because most of the work may be done. err and data do not change after done is closed.
type smudge struct {
	done    chan struct{}
	waiters atomic.Int32
	err     error
	refused bool   // an optional driver refused to filter it
	data    []byte // set for small contents
}

// smudges knows the conversions in progress, so that a blob is converted once for all mounts that show it.
type smudges struct {
	mu      sync.Mutex
	running map[object.ID]*smudge // by the key of the result in the cache
}

// join returns the conversion with the key. begun is true if there was none, so that the caller must run the conversion and then
// call end. The caller counts as a waiter unless it only converts ahead of readers.
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

// end removes a conversion from those in progress and wakes its waiters.
func (s *smudges) end(key object.ID, m *smudge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, key)
	close(m.done)
}

// smudged returns contents that programs convert. It runs the programs unless the result is in the
// cache.
func (v *View) smudged(ctx context.Context, b Blob, r convert.Rule, key object.ID) (Content, error) {
	ctx, cancel := v.untilClosed(ctx)
	defer cancel()
	for {
		m, begun := v.smudge(b, r, key, false)
		if begun {
			v.smudgeAhead(b.Path, r)
		}
		metrics.Charge(ctx, metrics.Converted, 0, 0)
		// A reader that leaves is no longer counted. If no reader waits, the driver may stop the conversion.
		select {
		case <-m.done:
			m.waiters.Add(-1)
		case <-ctx.Done():
			m.waiters.Add(-1)
			return nil, ctx.Err()
		}
		switch {
		// The contents are opened again without the driver, as checkout does for a filter that is
		// not required.
		case m.refused:
			v.refuse(key)
			return v.Open(ctx, b)
		case errors.Is(m.err, filter.ErrStopped) && ctx.Err() == nil:
			continue // the other mount that ran it was unmounted, or its last reader left
		case m.err != nil:
			return nil, fmt.Errorf("read %s: %w", b.Path, m.err)
		case m.data != nil:
			return memoryContent(m.data), nil
		}
		if c, ok := v.store.storage.content(key); ok {
			return c, nil
		}
		return nil, fmt.Errorf("read %s: converted contents were evicted at once: the cache is too small", b.Path)
	}
}

// refuse records that an optional driver refused to filter a blob.
func (v *View) refuse(key object.ID) {
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	if v.rules.refused == nil {
		v.rules.refused = map[object.ID]bool{}
	}
	v.rules.refused[key] = true
}

// smudge joins the conversion in progress or starts one. The caller counts as a waiter unless it
// only converts ahead.
func (v *View) smudge(b Blob, r convert.Rule, key object.ID, ahead bool) (m *smudge, begun bool) {
	s := v.store
	m, begun = s.smudges.join(key, ahead)
	if !begun {
		return m, false
	}
	started := s.tasks.start(func(ctx context.Context) {
		m.data, m.err = v.runPrograms(ctx, b, r, key, m, ahead)
		// A driver that is not `required` may fail, and git then keeps the contents as they are.
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

// runPrograms converts contents and stores them under key. It returns them too if they are small.
func (v *View) runPrograms(ctx context.Context, b Blob, r convert.Rule, key object.ID, m *smudge, ahead bool) ([]byte, error) {
	if c, ok := v.store.storage.content(key); ok { // another conversion has finished since the caller looked
		c.Release()
		return nil, nil
	}
	if v.conversions.programs == nil {
		return nil, errors.New("this view runs no filters")
	}
	c, err := v.openStored(ctx, b.ID, b.Path, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil {
		return nil, err
	}
	defer c.Release()
	// A driver that alone converts the contents reads them as a stream, of any size. The other
	// conversions need all of them in memory.
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
		in = memoryContent(content)
	}
	// The result is stored in the cache only as a whole: a driver may fail after half of its
	// output.
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

// hexOf returns an id in hexadecimal, "" for the zero id.
func hexOf(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// spool receives contents of unknown size: in memory first, in a file when they exceed spoolOver.
type spool struct {
	storage *storage
	// data holds the contents while they are at most spoolOver bytes.
	data []byte
	// file receives the contents after that; nil before.
	file *os.File
	// size is the number of bytes written so far.
	size int64
}

var _ filter.Output = (*spool)(nil)

// Write appends p. The first write beyond spoolOver moves the contents to a file.
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

// Reset empties the spool.
func (o *spool) Reset() error {
	o.discard()
	*o = spool{storage: o.storage}
	return nil
}

// discard removes the file of contents that were not kept.
func (o *spool) discard() {
	if o.file != nil {
		o.file.Close()
		os.Remove(o.file.Name()) // an unnamed file has no name: this fails then
		o.file = nil
	}
}

// keep stores the contents in the cache. It returns them too if they are small.
func (o *spool) keep(key object.ID) ([]byte, error) {
	if o.file == nil {
		data := o.data
		// Nil means to the caller that the contents are in the cache only; empty contents need a
		// slice.
		if data == nil {
			data = []byte{}
		}
		return data, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, Data: data})
	}
	f := o.file
	o.file = nil // PutFile closes it
	return nil, o.storage.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, File: f})
}
