package remotes

import (
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/hoststore"
)

// sharedHost is the open state directory of another daemon, with the number of stores that read from it.
type sharedHost struct {
	*hoststore.Host
	users int // protected by Remotes.mu
}

// holdHostLocked returns the open state directory at path for one more store, or nil if path is "" or the state
// directory of this daemon. The caller must call releaseHost when the store is closed. The caller holds r.mu.
func (r *Remotes) holdHostLocked(path string) *sharedHost {
	if path == "" || filepath.Clean(path) == filepath.Clean(r.state) {
		return nil
	}
	h, ok := r.hosts[path]
	if !ok {
		h = &sharedHost{Host: hoststore.Open(path)}
		r.hosts[path] = h
	}
	h.users++
	return h
}

// store returns the store in the directory stores/NAME of the state directory, or nil if h is nil.
func (h *sharedHost) store(name string) *hoststore.Store {
	if h == nil {
		return nil
	}
	return h.Store(name)
}

// releaseHost records that one store no longer uses h, which may be nil. After the last store, it closes the state
// directory at path.
func (r *Remotes) releaseHost(path string, h *sharedHost) {
	if h == nil {
		return
	}
	r.mu.Lock()
	h.users--
	last := h.users == 0
	if last {
		delete(r.hosts, path)
	}
	r.mu.Unlock()
	if !last {
		return
	}
	if err := h.Close(); err != nil {
		r.log.Warn("close state directory of the host", zap.String("dir", path), zap.Error(err))
	}
}
