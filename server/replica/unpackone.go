package replica

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/thin"
)

const (
	// packTime is the time in which a small pack must be unpacked, in all attempts together. A pack of a few MB can
	// contain deltas that git needs hours for.
	packTime = 10 * time.Second
	// packRate is the number of bytes of a pack for which it gets one more second.
	packRate = 32 << 20
	// retryFailed is the time after which a pack that could not be unpacked is tried again, because the machine may have
	// been busy.
	retryFailed = time.Hour
)

var (
	// errSlow means that the attempts to unpack a pack have taken longer than allowedFor.
	errSlow = errors.New("pack takes too long to be unpacked")
	// errLater means that a call of unpack has no time for another pack.
	errLater = errors.New("pack has not been unpacked yet")
)

// attempts are the failed attempts to unpack a pack.
type attempts struct {
	first time.Time     // time of the first attempt
	spent time.Duration // duration of all attempts
}

// allowedFor returns the time in which a pack of size bytes must be unpacked.
func allowedFor(size int64) time.Duration {
	return packTime + time.Duration(size)*time.Second/packRate
}

// pack stores the pack that is the contents of a blob, unless it is stored already. git verifies each object. It
// returns errSlow if the attempts, including those that have failed for another reason, have taken too long.
func (w *unpacking) pack(ctx context.Context, p thin.PackBlob, args ...string) error {
	id := p.ID.String()
	if w.unpackedAlready(id) {
		return nil
	}
	failed, start := w.failed[id], time.Now()
	if start.Sub(failed.first) > retryFailed {
		failed = attempts{first: start}
	}
	left := allowedFor(p.Size) - failed.spent
	switch {
	case left <= 0:
		return errSlow
	case start.After(w.end):
		return errLater
	}
	limited, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	from := w.command(limited, w.from, "cat-file", "blob", id)
	to := w.command(limited, w.to, append([]string{"index-pack", "--stdin"}, args...)...)
	hash, err := from.into(to)
	if err != nil {
		failed.spent += time.Since(start)
		w.failed[id] = failed
		if limited.Err() != nil {
			err = errSlow
		}
		return errors.Join(err, w.removeTemporary())
	}
	delete(w.failed, id)
	hash = strings.TrimSpace(strings.TrimPrefix(hash, "pack\t"))
	return disk.WriteFileUnsynced(filepath.Join(w.to, "done", id), []byte(hash), 0o600)
}

// unpackedAlready reports whether the pack in a blob is stored. A pack that sweep has marked as old is used again.
func (w *unpacking) unpackedAlready(id string) bool {
	done := filepath.Join(w.to, "done", id)
	if _, err := os.Lstat(done); err == nil {
		return true
	}
	hash, err := os.ReadFile(done + oldSuffix)
	if err != nil {
		return false
	}
	// sweep removes the index first, and the mark last
	if _, err := os.Lstat(filepath.Join(packDir(w.to), "pack-"+string(hash)+".idx")); err != nil {
		return false
	}
	return os.Rename(done+oldSuffix, done) == nil
}

// forget removes the failures of packs that no container has any more.
func (w *unpacking) forget() {
	for id := range w.failed {
		if !w.packs[id] {
			delete(w.failed, id)
		}
	}
}
