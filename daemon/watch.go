package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/mount/takeover"
	"golang.org/x/sys/unix"
)

// watcher tells of files that come into directories, all of a daemon's with one descriptor (inotify(7)).
type watcher struct {
	keeper takeover.Keeper // nil: the descriptor ends with this process
	mu     sync.Mutex
	file   *os.File                    // nil: there is none
	wakes  map[int32][]chan<- struct{} // by watch; others are of processes before this one
	done   sync.WaitGroup
}

// keptWatch is the name that the descriptor is kept by.
const keptWatch = "watch"

// newWatcher goes on with the descriptor of a process before this one, or makes one and has it kept. It cannot fail: without
// one, watch does.
//
// It is kept because the kernel takes its time to end it (fs/notify, fsnotify_destroy_group waits for all who might be reading
// the list of watches): 15 ms, as part of the death of a process that has it open alone, before its successor hears of that.
func newWatcher(k takeover.Keeper, before *os.File) *watcher {
	w := &watcher{keeper: k, wakes: map[int32][]chan<- struct{}{}}
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
			k.Keep(keptWatch, w.file) // or else a successor waits for its end
		}
	}
	w.done.Go(func() { w.read(w.file) })
	return w
}

// pollable gives a file that Go's runtime polls, whatever those who passed it on did to its flags; nil: there is none. f is
// closed.
func pollable(f *os.File) *os.File {
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil || dupErr != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), f.Name())
}

var errNoWatch = errors.New("changes cannot be watched")

// watch has something sent, if there is room, whenever a file comes into dir, until stop. Several may watch one. Who
// watches it already is told that it is not fresh, and goes on; one by this name that was there before is another.
func (w *watcher) watch(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error) {
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
	if controlErr := raw.Control(func(fd uintptr) {
		n, err = unix.InotifyAddWatch(int(fd), dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	}); controlErr != nil || err != nil {
		return nil, false, fmt.Errorf("watch %s: %w", dir, errors.Join(controlErr, err))
	}
	key := int32(n)
	if slices.Contains(w.wakes[key], wake) {
		return nil, false, nil
	}
	w.wakes[key] = append(w.wakes[key], wake)
	return func() { w.forget(key, wake) }, true, nil
}

func (w *watcher) forget(key int32, wake chan<- struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []chan<- struct{}
	for _, other := range w.wakes[key] {
		if other != wake {
			left = append(left, other)
		}
	}
	if w.wakes[key] = left; len(left) > 0 {
		return
	}
	delete(w.wakes, key)
	if w.file == nil {
		return
	}
	if raw, err := w.file.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(key)) }) // it may be gone with the directory
	}
}

func (w *watcher) read(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			key, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			poke(w.wakes[key])
			if mask&unix.IN_IGNORED != 0 { // the directory is gone
				delete(w.wakes, key)
			}
			if mask&unix.IN_Q_OVERFLOW != 0 { // some were not told
				for _, wakes := range w.wakes {
					poke(wakes)
				}
			}
			next := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:])) // len is the last of four numbers
			b = b[min(next, len(b)):]
		}
		w.mu.Unlock()
	}
}

func poke(wakes []chan<- struct{}) {
	for _, wake := range wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (w *watcher) close() {
	w.mu.Lock()
	f := w.file
	w.file = nil
	w.mu.Unlock()
	if f != nil {
		f.Close()
		if w.keeper != nil {
			w.keeper.Drop(keptWatch)
		}
	}
	w.done.Wait()
}
