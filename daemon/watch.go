package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells of files that come into directories, all of a daemon's with one descriptor (inotify(7)).
type watcher struct {
	mu    sync.Mutex
	file  *os.File // nil: there is none
	wakes map[int32][]chan<- struct{}
	done  sync.WaitGroup
}

// newWatcher cannot fail: without one, watch does.
func newWatcher() *watcher {
	w := &watcher{wakes: map[int32][]chan<- struct{}{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return w
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	w.done.Go(func() { w.read(w.file) })
	return w
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
	}
	w.done.Wait()
}
