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

// A pinned contents file can be read as it was at one moment, even if the file is changed later. Writers still change
// the contents file itself: before a chunk of the file is changed for the first time, the old bytes of the chunk are
// copied to a file without a name. So a pin leaves no trace on disk after the process has ended. A contents file that
// its node no longer uses, because the file was truncated or removed, stays in contents/ until its last pin is
// released.
//
// A pin never makes a change fail: if there is no space for the old bytes, the pin is lost and its reader receives
// ErrPinLost.

// ErrPinLost means that the old bytes of pinned contents could not be copied, because the disk is full or failing.
var ErrPinLost = errors.New("old contents could not be kept for the reader of a pin")

// errReleased means that the caller used a pin after its Release.
var errReleased = errors.New("read pinned contents: pin was released")

// chunk is the unit in which old contents are copied, in bytes.
const chunk = 64 << 10

// pins holds the pins of a layer.
type pins struct {
	count atomic.Int64 // number of pins; while it is 0, writers do not look into byNumber

	mu       sync.Mutex
	byNumber map[uint64][]*Pin // pins by the number of their contents file
	// file without a name that has the old bytes of changed chunks; nil if nothing was changed yet
	before disk.File
	end    int64 // length of before in bytes
}

// Pin is the right to read a contents file as it was at one moment.
type Pin struct {
	l      *Layer
	number uint64 // number of the contents file; 0 if the contents are empty or the pin was released
	size   int64  // length of the pinned contents in bytes
	// ID of the Kept record that the pin belongs to, while the log contains that record; 0 if there is none
	kept atomic.Uint64

	mu sync.Mutex
	// offsets in pins.before of the old bytes of the chunks that were changed after the pin was made, by chunk number
	saved map[int64]int64
	// error that later reads return (old bytes are unavailable, or the pin was released); nil while reads succeed
	lost error
}

// Size returns the length of the pinned contents in bytes.
func (p *Pin) Size() int64 { return p.size }

// Freeze calls f at a moment at which neither names nor contents change: every change that was acknowledged before the
// moment is visible, and no later change is. The function f pins the contents that are to be read as of this moment,
// and must not block. Freeze returns an upper bound of the time for which changes had to wait. Readers continue.
func (l *Layer) Freeze(f func(r Reader)) (paused time.Duration) {
	start := time.Now()
	l.cut.Lock()
	defer l.cut.Unlock()
	l.mu.Reserve()
	defer l.mu.Release()
	f(l.state)
	return time.Since(start)
}

// Pin pins the contents of an inode. To pin several files as of the same moment, call Pin inside the function that is
// passed to Freeze. A caller that is notified of every later change may also call Pin before Freeze.
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

// Release releases the pin. No other goroutine may be using the pin.
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
		p.l.janitor.poke() // the janitor may be waiting to remove the contents file
	}
	if s.count.Add(-1) == 0 {
		if s.before != nil {
			// An error of close is ignored: the file has no name and no readers, so its contents are not needed.
			_ = s.before.Close()
		}
		s.before, s.end, s.byNumber = nil, 0, nil
	}
}

// ReadAt reads the contents as they were at the moment of the pin into b, beginning at the offset off. It returns
// io.EOF at the end of the contents, and ErrPinLost if the old bytes are not available.
func (p *Pin) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read pinned contents at offset %d: %w", off, os.ErrInvalid)
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
	_ = data.Close() // an error is ignored, because nothing was written through this descriptor
	if errors.Is(err, io.EOF) {
		// the end of the contents file was cut off after the pin was made, and its bytes were saved before; restore adds them
		err = nil
	}
	if err == nil {
		err = p.restore(want, off, got)
	}
	if err != nil {
		return 0, fmt.Errorf("read pinned contents file %06x: %w", number, err)
	}
	if len(want) < len(b) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// restore replaces the bytes in b of all chunks that were changed after the pin was made by the old bytes. The
// parameter got is the number of bytes that were read from the contents file. Every chunk is saved before it is
// changed, so restore, which runs after the read, finds all changed chunks.
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
			return fmt.Errorf("contents file has only %d of %d bytes: %w", off+int64(got), p.size, io.ErrUnexpectedEOF)
		}
		done = end
	}
	return nil
}

// keep saves, for every pin of the contents file, the bytes between the offsets off and end before a change replaces
// these bytes. The caller holds the lock of the File, and l.cut shared, so that no new pin is made.
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

// keep saves those chunks between the offsets off and end that the pin has not saved yet. If saving fails, the pin is
// lost.
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

// save copies the chunks whose numbers are at least first and less than next. The caller holds p.mu.
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

// place reserves n bytes in the file for old bytes, and returns the file and the offset of the reserved bytes. The
// first call creates the file.
func (s *pins) place(l *Layer, n int64) (f disk.File, at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before == nil {
		path := filepath.Join(l.dir, beforeName)
		if s.before, err = l.o.FS.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			s.before = nil
			return nil, 0, err
		}
		// a process that is killed before this line leaves the name, and the next process truncates the file
		_ = l.o.FS.Remove(path)
	}
	at = s.end
	s.end += n
	return s.before, at, nil
}

// beforeName is the name of the file for old bytes in the overlay's directory. The name exists only while place opens
// the file.
const beforeName = "before"

// pinned reports whether a contents file has pins and so must not be removed yet.
func (s *pins) pinned(number uint64) bool {
	if s.count.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byNumber[number]) > 0
}

// yield gives up the pins of the given contents files, so that these files can be removed to free disk space. Later
// reads through these pins return an error.
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

// Lost returns the error with which later reads fail, and nil if the contents can be read. The error is ErrPinLost if
// the old bytes could not be saved.
func (p *Pin) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}
