package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// pinnedFile is a pin and the data that it must return.
type pinnedFile struct {
	name string
	pin  *Pin
	data []byte
	lost bool // the pin was lost
}

// freeze pins all contents.
func (w *world) freeze() {
	w.l.Freeze(func(r Reader) {
		for name, m := range w.files {
			in, ok := r.Inode(m.node)
			if !ok || in.Size == SizeOfBase {
				continue
			}
			w.pinned = append(w.pinned, pinnedFile{name: name, pin: w.l.Pin(in), data: bytes.Clone(m.data)})
		}
	})
}

func (w *world) release() {
	for _, p := range w.pinned {
		p.pin.Release()
	}
	w.pinned = nil
}

// comparePins checks the pinned contents. A pin may be lost on a full disk, but then it stays lost, and it never
// returns other data.
func (w *world) comparePins() {
	w.t.Helper()
	for i := range w.pinned {
		p := &w.pinned[i]
		got := make([]byte, len(p.data)+10)
		n, err := p.pin.ReadAt(got, 0)
		switch {
		case errors.Is(err, ErrPinLost):
			p.lost = true
		case p.lost || !errors.Is(err, io.EOF):
			w.t.Errorf("read pinned %s: got %d bytes, %v; lost before: %v", p.name, n, err, p.lost)
		case !bytes.Equal(got[:n], p.data) || p.pin.Size() != int64(n):
			w.t.Errorf("pinned contents of %s differ: got %d bytes of %d, want %d", p.name, n, p.pin.Size(), len(p.data))
		}
	}
}

// For all changes of a file, its pin returns the old contents and the file the new ones.
func TestPinnedContentsStay(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*chunk/16)
	for name, change := range map[string]func(w *world) error{
		"write":        func(w *world) error { return w.write("f", 10, []byte("over")) },
		"write across": func(w *world) error { return w.write("f", chunk-3, bytes.Repeat([]byte("x"), chunk+6)) },
		"append":       func(w *world) error { return w.write("f", int64(len(big)), []byte("more")) },
		"append hole":  func(w *world) error { return w.write("f", int64(len(big))+3*chunk, []byte("more")) },
		"cut":          func(w *world) error { return w.truncate("f", 5) },
		"cut to nothing, write": func(w *world) error {
			return errors.Join(w.truncate("f", 0), w.write("f", 0, []byte("new")))
		},
		"cut, grow, write": func(w *world) error {
			return errors.Join(w.truncate("f", chunk+1), w.truncate("f", 4*chunk), w.write("f", 2*chunk, []byte("new")))
		},
		"hole": func(w *world) error {
			copy(w.files["f"].data[100:100+chunk], make([]byte, chunk))
			return w.file("f").Fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 100, chunk)
		},
		"copy": func(w *world) error {
			err := errors.Join(w.create("g"), w.write("g", 0, big[5:500]))
			_, copyErr := w.file("f").CopyRange(w.file("g"), 0, 2*chunk-100, 495)
			copy(w.files["f"].data[2*chunk-100:], big[5:500])
			return errors.Join(err, copyErr)
		},
		"remove": func(w *world) error { return w.remove("f") },
		"replace": func(w *world) error {
			return errors.Join(w.create("g"), w.write("g", 0, []byte("other")), w.rename("g", "f"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := opened(t, Options{})
			w.must(w.create("f"))
			w.must(w.write("f", 0, big))
			w.must(w.write("base4", 3, []byte("changed")))
			before := w.contents()
			w.freeze()
			w.must(change(w))
			w.freeze()
			w.compare()
			w.must(w.write("base4", 0, []byte("again")))
			w.must(change2(w))
			w.compare()
			w.must(w.l.janitor.tidy(true))
			w.compare()
			for i := range 50 { // parts at odd offsets
				p := w.pinned[rand.IntN(len(w.pinned))]
				off := rand.Int64N(int64(len(p.data)) + 1)
				got := make([]byte, rand.IntN(chunk+100))
				n, err := p.pin.ReadAt(got, off)
				if want := p.data[off:]; !bytes.HasPrefix(want, got[:n]) || n < min(len(got), len(want)) ||
					err != nil && !errors.Is(err, io.EOF) {
					t.Fatalf("read %d: got %d bytes at %d of %s: %v", i, n, off, p.name, err)
				}
			}
			w.release()
			w.must(w.l.janitor.tidy(true))
			w.compare()
			if n := w.contents(); n > before+1 {
				t.Errorf("contents files: got %d, want %d", n, before)
			}
			if w.l.pins.count.Load() != 0 || w.l.pins.before != nil || len(w.l.pins.byNumber) != 0 {
				t.Errorf("pins after their release: got %+v", &w.l.pins)
			}
		})
	}
}

// change2 changes the file again, if it exists.
func change2(w *world) error {
	if w.files["f"] == nil {
		return nil
	}
	return errors.Join(w.write("f", 1, []byte("once more")), w.truncate("f", 2))
}

// Contents without a reference exist as long as they are pinned, also during a compaction, and are removed afterwards.
func TestPinnedContentOfTheRemoved(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	w.must(w.write("f", 0, []byte("data")))
	w.freeze()
	w.must(w.remove("f"))
	w.must(w.l.janitor.tidy(true))
	w.must(w.l.janitor.compact())
	if w.contents() != 1 {
		t.Error("a pinned contents file was removed")
	}
	w.comparePins()
	w.release()
	await.Until(t, "the contents file is removed", func() bool { return w.contents() == 0 })
}

// A killed process leaves no files of its pins.
func TestDeathWithPins(t *testing.T) {
	for _, takeOver := range []bool{false, true} {
		w := opened(t, Options{})
		w.must(w.create("f"))
		w.must(w.write("f", 0, bytes.Repeat([]byte("f"), 3*chunk)))
		w.must(w.create("gone"))
		w.must(w.write("gone", 0, []byte("gone")))
		w.freeze()
		w.must(w.write("f", 5, []byte("changed")))
		w.must(w.remove("gone"))
		w.must(w.l.janitor.tidy(true))
		w.comparePins()
		w.kill()
		w.o.TakeOver = takeOver
		if rec := w.mustOpen(); rec.Start != Killed || len(rec.Problems) > 0 || rec.TookOver != takeOver {
			t.Errorf("recovery after the kill: got %+v", rec)
		}
		w.compare()
		await.Until(t, "the contents file is removed", func() bool { return w.contents() == 1 })
		entries, err := os.ReadDir(w.dir)
		w.must(err)
		for _, e := range entries {
			if e.Name() == beforeName {
				t.Errorf("file %s of a pin still exists", e.Name())
			}
		}
		if lost := w.lost(); len(lost) != 0 {
			t.Errorf("files in lost+found: got %q", lost)
		}
	}
}

// On a full disk changes succeed and pins of changed contents are lost. Pins of unchanged contents are kept.
func TestPinsGiveWay(t *testing.T) {
	var full atomic.Bool
	w := opened(t, Options{pause: time.Hour, FS: disktest.Faulty(disk.OS, func(o disktest.Op) error {
		if full.Load() && o.Name == "CopyFrom" && filepath.Base(o.Path) == beforeName {
			return syscall.ENOSPC
		}
		return nil
	})})
	for _, name := range []string{"f", "g"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte("data of "+name)))
	}
	w.freeze()
	full.Store(true)
	w.must(w.write("f", 0, []byte("new")))
	w.must(w.truncate("f", 1))
	w.compare()
	for _, p := range w.pinned {
		if p.lost != (p.name == "f") {
			t.Errorf("pin of %s: got lost %v", p.name, p.lost)
		}
	}
}

// The space of deleted contents can be used at once, even if they are pinned.
func TestPinsGiveRoom(t *testing.T) {
	var full, removed atomic.Bool
	w := opened(t, Options{pause: time.Hour, FS: disktest.Faulty(disk.OS, func(o disktest.Op) error {
		switch {
		case !strings.Contains(filepath.Dir(o.Path), "contents"):
		case o.Name == "Remove":
			removed.Store(true)
		case o.Name == "WriteAt" && full.Load() && !removed.Load():
			return syscall.ENOSPC
		}
		return nil
	})})
	for _, name := range []string{"old", "new"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte("data of "+name)))
	}
	w.freeze()
	w.must(w.remove("old"))
	full.Store(true)
	w.must(w.write("new", 100, []byte("more")))
	w.compare()
	for _, p := range w.pinned {
		if p.lost != (p.name == "old") {
			t.Errorf("pin of %s: got lost %v", p.name, p.lost)
		}
	}
}

// All pins of a freeze are of one moment, also with many writers: each writes to one file and then to the next, so no
// file may have more records than the one before it.
func TestFreezeIsOneMoment(t *testing.T) {
	w := opened(t, Options{})
	const files, record = 4, 100
	for i := range files {
		w.must(w.create(fmt.Sprint("f", i)))
	}
	var nodes [files]Node
	for i := range nodes {
		nodes[i] = w.files[fmt.Sprint("f", i)].node
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		var handles [files]*File
		for i := range handles {
			handles[i] = w.l.File(nodes[i])
			defer handles[i].Done()
		}
		for round := int64(0); !stop.Load(); round++ {
			record := fmt.Appendf(nil, "%099d\n", round)
			for i, f := range handles {
				at := round * int64(len(record))
				if round%50 == 49 && i%2 == 1 {
					at = 0 // existing contents are overwritten, too
				}
				if _, err := f.WriteAt(record, at); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for moment := 0; moment < 200 && !t.Failed(); moment++ {
		var pinned [files]*Pin
		w.l.Freeze(func(r Reader) {
			for i, n := range nodes {
				in, _ := r.Inode(n)
				pinned[i] = w.l.Pin(in)
			}
		})
		last := int64(1) << 62
		for i, p := range pinned {
			rounds := p.Size() / record
			if i%2 == 0 && (rounds > last || last != 1<<62 && last-rounds > 1) {
				t.Errorf("moment %d: file %d has %d records, but the one before has %d", moment, i, rounds, last)
			}
			if i%2 == 0 {
				last = rounds
			}
			first := max(0, rounds-20)
			data := make([]byte, p.Size()-first*record)
			if _, err := p.ReadAt(data, first*record); err != nil && p.Size() > 0 {
				t.Errorf("moment %d: file %d: %v", moment, i, err)
			}
			for k := first; i%2 == 0 && k < rounds; k++ {
				got := data[(k-first)*record:][:record]
				if want := fmt.Appendf(nil, "%099d\n", k); !bytes.Equal(got, want) {
					t.Errorf("moment %d: record %d of file %d: got %q", moment, k, i, got)
					break
				}
			}
		}
		for _, p := range pinned {
			p.Release()
		}
	}
	stop.Store(true)
	all.Wait()
	for i := range files {
		delete(w.files, fmt.Sprint("f", i)) // the model does not know these writes
	}
	w.names = w.names[:0]
}
