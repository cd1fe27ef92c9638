package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// A pinned content can be read as it was at one moment, whatever is written to its file meanwhile. The file goes on with
// the content: before a chunk of it is changed for the first time, what it was is copied to a file that has no name. So a
// pin changes nothing that is on the disk, and who dies with pins leaves nothing. What the file loses, or all of it if the
// file itself goes, stays in contents/ until the last pin is given back.
//
// A pin never makes a change fail: if there is no room for what was, the pin is lost, and its reader is told.

// ErrPinLost means that what a content was could not be kept, because the disk is full or failing.
var ErrPinLost = errors.New("what the contents were could not be kept")

// errReleased says that a pin is used after it was given back: a fault of the caller.
var errReleased = errors.New("pin was given back")

// chunk is how much of a content is kept at a time, in bytes.
const chunk = 64 << 10

// pins are the pinned contents of a layer.
type pins struct {
	count atomic.Int64 // so that who writes has nothing to look up as long as there are none

	mu       sync.Mutex
	byNumber map[uint64][]*Pin
	before   disk.File // what contents were; nil: nothing was changed yet
	end      int64     // of before
}

// Pin is a content as it was at one moment.
type Pin struct {
	l      *Layer
	number uint64 // 0: there are no bytes, or none that anybody wants
	size   int64
	kept   atomic.Uint64 // id of the Kept that it is of, while that is on record; 0: of none

	mu    sync.Mutex
	saved map[int64]int64 // where in before a chunk is that was changed since
	lost  error
}

// Size is how many bytes it has.
func (p *Pin) Size() int64 { return p.size }

// Freeze calls f at a moment at which nothing changes, neither names nor contents: what was acknowledged before is there,
// and nothing that begins later. f pins the contents that are to be read as they are then; it must not wait for anything.
// What it gives is how long others had to wait, at most.
func (l *Layer) Freeze(f func(r Reader)) (paused time.Duration) {
	start := time.Now()
	l.cut.Lock()
	l.View(f)
	l.cut.Unlock()
	return time.Since(start)
}

// Pin pins the content that an inode has. To be right at a moment it is called within Freeze, or before, by who is told
// of every change that comes between.
func (l *Layer) Pin(in Inode) *Pin {
	p := &Pin{l: l, number: in.Content, size: in.Size}
	if p.number == 0 || p.size == 0 {
		p.number, p.size = 0, 0
		return p
	}
	s := &l.pins
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byNumber == nil {
		s.byNumber = make(map[uint64][]*Pin)
	}
	s.byNumber[p.number] = append(s.byNumber[p.number], p)
	s.count.Add(1)
	return p
}

// Release releases a pin. It must not be in use by a reader.
func (p *Pin) Release() {
	p.mu.Lock()
	number := p.number
	p.number, p.lost = 0, errReleased
	p.mu.Unlock()
	if number == 0 {
		return
	}
	s := &p.l.pins
	s.mu.Lock()
	defer s.mu.Unlock()
	others := s.byNumber[number]
	for i, other := range others {
		if other == p {
			others[i] = others[len(others)-1]
			others = others[:len(others)-1]
			break
		}
	}
	if len(others) > 0 {
		s.byNumber[number] = others
	} else {
		delete(s.byNumber, number)
		p.l.poke() // the content may be waiting to be removed
	}
	if s.count.Add(-1) == 0 {
		if s.before != nil {
			_ = s.before.Close() // it has no name, and nobody wants it
		}
		s.before, s.end, s.byNumber = nil, 0, nil
	}
}

// ReadAt reads what the content was at the moment of the pin.
func (p *Pin) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read pinned content at %d: %w", off, os.ErrInvalid)
	}
	p.mu.Lock()
	number, lost := p.number, p.lost
	p.mu.Unlock()
	switch {
	case lost != nil:
		return 0, lost
	case off >= p.size:
		return 0, io.EOF
	}
	want := b
	if int64(len(want)) > p.size-off {
		want = want[:p.size-off]
	}
	data, err := p.l.contents.open(number)
	if err != nil {
		return 0, err
	}
	got, err := data.ReadAt(want, off)
	_ = data.Close() // it was read only
	if errors.Is(err, io.EOF) {
		err = nil // what is missing was cut off meanwhile, and kept
	}
	if err == nil {
		err = p.restore(want, off, got)
	}
	if err != nil {
		return 0, fmt.Errorf("read pinned content %06x: %w", number, err)
	}
	if len(want) < len(b) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// restore puts in what was kept of chunks that may have changed before they were read: to keep it comes first.
func (p *Pin) restore(b []byte, off int64, got int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return p.lost
	}
	for done := int64(0); done < int64(len(b)); {
		i := (off + done) / chunk
		end := min(int64(len(b)), (i+1)*chunk-off)
		at, ok := p.saved[i]
		switch {
		case ok:
			if _, err := p.l.pins.before.ReadAt(b[done:end], at+(off+done)%chunk); err != nil {
				return err
			}
		case int64(got) < end:
			return fmt.Errorf("%d of %d bytes are there: %w", off+int64(got), p.size, io.ErrUnexpectedEOF)
		}
		done = end
	}
	return nil
}

// keep keeps what a content is from off to end, if it is pinned, before that changes. l.cut is held shared, so that it
// does not become pinned meanwhile, and the File's lock.
func (f *File) keep(off, end int64) {
	s := &f.l.pins
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	pins := s.byNumber[f.number]
	if len(pins) > 0 {
		pins = append([]*Pin(nil), pins...)
	}
	s.mu.Unlock()
	for _, p := range pins {
		f.l.unkeepChanged(p, off)
		p.keep(f.data, off, end)
	}
}

func (p *Pin) keep(from disk.File, off, end int64) {
	end = min(end, p.size)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := off / chunk; i*chunk < end && p.lost == nil && p.number != 0; i++ {
		if _, ok := p.saved[i]; ok {
			continue
		}
		next := i + 1
		for next*chunk < end {
			if _, ok := p.saved[next]; ok {
				break
			}
			next++
		}
		if err := p.save(from, i, next); err != nil {
			p.lost = fmt.Errorf("%w: %w", ErrPinLost, err)
		}
		i = next
	}
}

// save copies chunks. p.mu is held.
func (p *Pin) save(from disk.File, first, next int64) error {
	s := &p.l.pins
	before, at, err := s.place(p.l, (next-first)*chunk)
	if err != nil {
		return err
	}
	want := min(next*chunk, p.size) - first*chunk
	if n, err := before.CopyFrom(at, from.Own(), first*chunk, want); err != nil {
		return err
	} else if n < want {
		return io.ErrUnexpectedEOF
	}
	if p.saved == nil {
		p.saved = make(map[int64]int64)
	}
	for i := first; i < next; i++ {
		p.saved[i] = at + (i-first)*chunk
	}
	return nil
}

// place returns n bytes of the file for what was, which is made with the first.
func (s *pins) place(l *Layer, n int64) (f disk.File, at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before == nil {
		path := filepath.Join(l.dir, beforeName)
		if s.before, err = l.o.FS.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			s.before = nil
			return nil, 0, err
		}
		_ = l.o.FS.Remove(path) // who is killed here leaves it to be used again
	}
	at = s.end
	s.end += n
	return s.before, at, nil
}

const beforeName = "before"

// pinned reports whether a content must not be removed yet.
func (s *pins) pinned(number uint64) bool {
	if s.count.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byNumber[number]) > 0
}

// yield releases the pins of contents whose room is needed.
func (s *pins) yield(numbers []uint64) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	var pins []*Pin
	for _, number := range numbers {
		pins = append(pins, s.byNumber[number]...)
		delete(s.byNumber, number)
	}
	s.mu.Unlock()
	for _, p := range pins {
		p.mu.Lock()
		if p.lost == nil {
			p.lost = ErrPinLost
		}
		p.mu.Unlock()
	}
}

// Lost returns ErrPinLost if the content can no longer be read as it was.
func (p *Pin) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}
