package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// maxConverted is the largest content that is converted in memory, in bytes. Git converts larger ones too, but nobody
// keeps text of that size in a repository. What only goes through a driver may be of any size.
const maxConverted = 512 << 20

// convertedID names the converted form of the blob at path in the cache.
func convertedID(id object.ID, r convert.Rule, path string) object.ID {
	sum := sha256.Sum256([]byte("converted\x00" + id.String() + "\x00" + r.Key(path)))
	key, err := object.FromBytes(sum[:])
	if err != nil {
		panic(err) // a SHA-256 sum is as long as an id
	}
	return key
}

// converted gives a content as checkout would write it.
func (v *View) converted(ctx context.Context, b Blob, r convert.Rule) (Content, error) {
	key := convertedID(b.ID, r, b.Path)
	if c, ok := v.store.content(key); ok {
		return c, nil
	}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", b.Path, err)
	}
	if _, ok := r.Driver(); ok || r.Iconv() != "" {
		return v.smudged(ctx, b, r, key)
	}
	c, err := v.raw(ctx, b.ID, b.Path, func() company { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil || c.Size() > maxConverted {
		return c, err
	}
	defer c.Release()
	stored, err := wholeOf(c)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", b.Path, err)
	}
	content := r.Apply(b.ID, stored)
	err = v.store.keep(odb.Object{ID: key, Type: object.Blob, Size: int64(len(content)), Data: content})
	return memoryContent(content), err
}

func wholeOf(c Content) ([]byte, error) {
	content := make([]byte, c.Size())
	if _, err := c.ReadAt(content, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return content, nil
}

// smudge is one content that programs are converting, for all who wait for it. It goes on when they leave, since most
// of the work may be done. err and data are frozen once done is closed.
type smudge struct {
	done    chan struct{}
	waiters atomic.Int32
	err     error
	refused bool   // the driver did not filter it, and does not have to
	data    []byte // a small content
}

// smudged gives a content that programs convert, and runs them if nobody has done so yet on this host.
func (v *View) smudged(ctx context.Context, b Blob, r convert.Rule, key object.ID) (Content, error) {
	ctx, cancel := v.untilClosed(ctx)
	defer cancel()
	for {
		m, begun := v.smudge(b, r, key, false)
		if begun {
			v.smudgeAhead(b.Path, r)
		}
		metrics.Charge(ctx, metrics.Converted, 0, 0)
		select {
		case <-m.done:
			m.waiters.Add(-1)
		case <-ctx.Done():
			m.waiters.Add(-1)
			return nil, ctx.Err()
		}
		switch {
		case m.refused:
			v.refuse(key)
			return v.Open(ctx, b)
		case errors.Is(m.err, filter.ErrStopped) && ctx.Err() == nil:
			continue // another mount began it, and has ended; or its last waiter had left
		case m.err != nil:
			return nil, fmt.Errorf("read %s: %w", b.Path, m.err)
		case m.data != nil:
			return memoryContent(m.data), nil
		}
		if c, ok := v.store.content(key); ok {
			return c, nil
		}
		return nil, fmt.Errorf("read %s: it was evicted as it was converted: the cache is too small", b.Path)
	}
}

// refuse remembers that a driver did not filter a content.
func (v *View) refuse(key object.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rules.refused == nil {
		v.rules.refused = map[object.ID]bool{}
	}
	v.rules.refused[key] = true
}

// smudge joins the conversion under way or begins one. The caller is counted as waiting unless it only looks ahead.
func (v *View) smudge(b Blob, r convert.Rule, key object.ID, ahead bool) (m *smudge, begun bool) {
	s := v.store
	s.mu.Lock()
	m, ok := s.smudges[key]
	if !ok {
		m = &smudge{done: make(chan struct{})}
		s.smudges[key] = m
	}
	if !ahead {
		m.waiters.Add(1)
	}
	s.mu.Unlock()
	if ok {
		return m, false
	}
	started := s.background(func(ctx context.Context) {
		m.data, m.err = v.runPrograms(ctx, b, r, key, m, ahead)
		if d, ok := r.Driver(); ok && !d.Required && errors.Is(m.err, filter.ErrUnfiltered) {
			s.log.Warn("content stays unfiltered", zap.String("path", b.Path), zap.String("filter", d.Name), zap.Error(m.err))
			m.refused = true
		}
		s.landSmudge(key, m)
	})
	if !started {
		m.err = ErrClosed
		s.landSmudge(key, m)
	}
	return m, true
}

func (s *Store) landSmudge(key object.ID, m *smudge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.smudges, key)
	close(m.done)
}

// runPrograms converts a content and keeps it under key; it is returned if it is small.
func (v *View) runPrograms(ctx context.Context, b Blob, r convert.Rule, key object.ID, m *smudge, ahead bool) ([]byte, error) {
	if c, ok := v.store.content(key); ok { // it has come between two looks
		c.Release()
		return nil, nil
	}
	if v.programs == nil {
		return nil, errors.New("filters are not run here")
	}
	c, err := v.raw(ctx, b.ID, b.Path, func() company { return v.neighbours(ctx, b.ID, b.Path) })
	if err != nil {
		return nil, err
	}
	defer c.Release()
	var in Content = c
	if !r.Streams() && c.Size() <= maxConverted {
		content, err := wholeOf(c)
		if err != nil {
			return nil, err
		}
		content = r.Apply(b.ID, content)
		if name := r.Iconv(); name != "" && len(content) > 0 {
			encoded, ok, err := v.programs.Iconv(convert.IconvNames(name), content)
			if err != nil {
				return nil, err
			}
			if ok {
				content = encoded
			}
		}
		in = memoryContent(content)
	}
	out := &spool{store: v.store}
	defer out.discard()
	d, ok := r.Driver()
	f := filter.File{
		Path: b.Path, Ref: v.told.ref, Treeish: hexOf(v.told.commit), BlobID: hexOf(b.ID), Content: in, Size: in.Size(), Out: out,
		Wanted: func() bool { return m.waiters.Load() > 0 }, Ahead: ahead,
	}
	switch {
	case !ok:
		_, err = io.Copy(out, io.NewSectionReader(in, 0, in.Size()))
	case d.Process != "":
		err = v.programs.Process(d.Process, f)
	default:
		err = v.programs.OneShot(d.Smudge, f)
	}
	if err != nil {
		return nil, err
	}
	return out.keep(key)
}

func hexOf(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// spool takes a content of unknown size: into memory first, into a file when it becomes larger than spoolOver.
type spool struct {
	store *Store
	data  []byte
	file  *os.File
	size  int64
}

var _ filter.Output = (*spool)(nil)

func (o *spool) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	if o.file == nil && o.size <= spoolOver {
		o.data = append(o.data, p...)
		return len(p), nil
	}
	if o.file == nil {
		f, err := o.store.blobs.Spool(o.size)
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

// Reset makes the spool empty.
func (o *spool) Reset() error {
	o.discard()
	*o = spool{store: o.store}
	return nil
}

func (o *spool) discard() {
	if o.file != nil {
		o.file.Close()
		os.Remove(o.file.Name()) // it may have none: then that is no file's name
		o.file = nil
	}
}

// keep puts the content into the cache.
func (o *spool) keep(key object.ID) ([]byte, error) {
	if o.file == nil {
		data := o.data
		if data == nil {
			data = []byte{}
		}
		return data, o.store.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, Data: data})
	}
	f := o.file
	o.file = nil // PutFile closes it
	return nil, o.store.keep(odb.Object{ID: key, Type: object.Blob, Size: o.size, File: f})
}
