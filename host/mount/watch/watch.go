// Package watch notifies goroutines of new files in directories. It uses one inotify descriptor, which a successor
// process inherits.
package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/mount/takeover"
)

// Watcher watches directories for new files. All watched directories of a daemon share one inotify descriptor (see
// inotify(7)).
type Watcher struct {
	keeper takeover.Keeper // nil if the descriptor ends with this process
	// mu guards file and wakes.
	mu    sync.Mutex
	file  *os.File          // nil if there is none
	wakes map[int32][]waker // channels to notify, by watch descriptor; other descriptors remain from previous processes
	done  sync.WaitGroup
}

// waker is a channel to notify of new files.
type waker struct {
	wake   chan<- struct{}
	except []string // prefixes of the names that are not reported
}

// Kept is the name under which the keeper (the interface to the supervisor) holds the inotify descriptor.
const Kept = "watch"

// New returns a Watcher. It uses before, the inotify descriptor of the previous process, unless before is nil.
// Otherwise it creates a descriptor and sends it to the keeper k, unless k is nil. New does not fail: if it cannot
// create a descriptor, Add returns errNoWatch.
//
// The keeper holds the descriptor because closing the last copy of it takes long: the kernel waits in
// fsnotify_destroy_group (fs/notify) for all readers of the list of watches. If this process had the last copy, its
// exit would take about 15 ms longer, and the successor would start later.
func New(k takeover.Keeper, before *os.File) *Watcher {
	w := &Watcher{keeper: k, wakes: map[int32][]waker{}}
	if before != nil {
		w.file = pollable(before)
	}
	if w.file == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return w
		}
		w.file = os.NewFile(uintptr(fd), "inotify")
		if k != nil {
			k.Keep(Kept, w.file) // otherwise its last close delays the successor
		}
	}
	w.done.Go(func() { w.read(w.file) })
	return w
}

// pollable returns a copy of f that Go's runtime polls, whatever flags earlier processes have set on f. It closes f. It
// returns nil if the copy cannot be created.
func pollable(f *os.File) *os.File {
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	// Only os.NewFile checks whether a descriptor can be polled, so a new File is needed after the flags were changed.
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil ||
		dupErr != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// errNoWatch means that a Watcher cannot watch directories.
var errNoWatch = errors.New("no inotify descriptor could be created")

// Add watches the directory dir. Whenever a file appears in dir, the Watcher sends a value to wake, unless that would
// block, until stop is called. Files whose names begin with an element of except are not reported. Several channels may
// watch the same directory. If wake watches dir already, Add returns a nil stop, and fresh as false. If dir is removed
// and created again, Add must be called again.
func (w *Watcher) Add(dir string, wake chan<- struct{}, except ...string) (stop func(), fresh bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil, false, errNoWatch
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return nil, false, err
	}
	var n int
	// IN_CREATE and IN_MOVED_TO report new files and renames into the directory.
	if controlErr := raw.Control(func(fd uintptr) {
		n, err = unix.InotifyAddWatch(int(fd), dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	}); controlErr != nil || err != nil {
		return nil, false, fmt.Errorf("watch %s: %w", dir, errors.Join(controlErr, err))
	}
	key := int32(n)
	// inotify returns the same watch descriptor for a directory that is watched already.
	if slices.ContainsFunc(w.wakes[key], func(k waker) bool { return k.wake == wake }) {
		return nil, false, nil
	}
	w.wakes[key] = append(w.wakes[key], waker{wake, except})
	return func() { w.forget(key, wake) }, true, nil
}

// forget stops sending events of the watch descriptor key to wake. If no other channel uses the descriptor, it removes
// the watch.
func (w *Watcher) forget(key int32, wake chan<- struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := slices.DeleteFunc(w.wakes[key], func(k waker) bool { return k.wake == wake })
	if w.wakes[key] = left; len(left) > 0 {
		return
	}
	delete(w.wakes, key)
	if w.file == nil {
		return
	}
	if raw, err := w.file.SyscallConn(); err == nil {
		// The kernel has removed the watch already if the directory was removed.
		raw.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(key)) })
	}
}

// read reads events from f and sends values to the channels of their directories, until f is closed. The format of an
// event is struct inotify_event (see inotify(7)).
func (w *Watcher) read(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		// One read can return several events. Each event is followed by a name of variable length.
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			key, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			// The last of four numbers is the length of the name, which is padded with zero bytes.
			next := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
			poke(w.wakes[key], string(bytes.TrimRight(b[unix.SizeofInotifyEvent:next], "\x00")))
			if mask&unix.IN_IGNORED != 0 { // the directory was removed
				delete(w.wakes, key)
			}
			if mask&unix.IN_Q_OVERFLOW != 0 { // the kernel has dropped events
				for _, wakes := range w.wakes {
					poke(wakes, "")
				}
			}
			b = b[next:]
		}
		w.mu.Unlock()
	}
}

// poke reports the name of a new file to each channel in wakes, unless that would block.
func poke(wakes []waker, name string) {
	for _, k := range wakes {
		if slices.ContainsFunc(k.except, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// Close closes the descriptor, removes it from the keeper, and waits until the goroutine of read has ended.
func (w *Watcher) Close() {
	w.mu.Lock()
	f := w.file
	// While file is nil, Add returns errNoWatch, and forget does not use the descriptor.
	w.file = nil
	w.mu.Unlock()
	if f != nil {
		f.Close()
		if w.keeper != nil {
			w.keeper.Drop(Kept)
		}
	}
	w.done.Wait()
}
