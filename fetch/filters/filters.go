// Package filters runs the filter drivers of a mount, and records the files that a driver did not convert.
package filters

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// maxUnfiltered is the maximum size in bytes of the file of Filters that is read; it has 65 bytes for each file of the
// mount.
const maxUnfiltered = 1 << 30

// Filters runs the filter drivers of one mount. It also records the files that a driver did not convert: such a file
// keeps its contents and its size as long as the kernel has the mount, even after a takeover. A later mount runs the
// driver again.
//
// The record is a file in the home of the mount. Its first line is the digest of the settings for which sizes of
// converted contents are known in the mount. Each further line is the cache key of a result that must not be used.
type Filters struct {
	*filter.Programs
	owner string
	path  string
	log   *zap.Logger
	// continued is true in a takeover, in which errors of writing the record are ignored, because the disk may be full.
	continued bool

	mu         sync.Mutex
	digest     string
	file       *os.File           // nil until Begin
	unfiltered map[object.ID]bool // cache keys of the files that a driver did not convert
}

// Open returns the Filters of a mount. session identifies the mount's session, digest identifies its settings,
// and path is the path of the record. In a takeover, the Filters of the predecessor are continued. Otherwise, same
// reports whether the results of earlier mounts are still valid: the settings are those of the last mount, and that
// mount had no unconverted files.
func Open(p *filter.Programs, session, digest, path string, takeOver bool,
	log *zap.Logger) (f *Filters, same bool, err error) {
	text, err := disk.ReadRegular(path, maxUnfiltered)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("read list of files that the filter did not convert: %w", err)
	}
	f = &Filters{Programs: p, path: path, log: log, continued: takeOver, digest: digest, unfiltered: map[object.ID]bool{}}
	before, lines, _ := strings.Cut(string(text), "\n")
	same = before == digest && lines == ""
	if takeOver && before != "" {
		f.digest = before
		f.unfiltered = parseUnfiltered(lines)
	}
	f.owner = session + "\x00" + f.digest
	return f, same, nil
}

// parseUnfiltered parses the lines of the record after the first. It skips an incomplete last line: its writer was
// killed before the kernel received the contents.
func parseUnfiltered(lines string) map[object.ID]bool {
	all := map[object.ID]bool{}
	for line := range strings.Lines(lines) {
		if id, err := object.ParseID(strings.TrimSuffix(line, "\n")); err == nil {
			all[id] = true
		}
	}
	return all
}

// Begin writes the record for this mount, or continues that of the predecessor. The caller has made the mount forget
// the sizes that are not valid any more.
func (f *Filters) Begin() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.continued {
		if f.file, err = os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
			if len(f.unfiltered) > 0 {
				// complete the line that a killed predecessor may have written in part; empty lines are skipped
				_, _ = f.file.WriteString("\n")
			}
			return nil
		}
	}
	text := f.digest + "\n" + object.Lines(slices.Collect(maps.Keys(f.unfiltered)))
	if err = disk.WriteFileUnsynced(f.path, []byte(text), 0o600); err == nil {
		f.file, err = os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	}
	if err != nil && f.continued {
		f.log.Warn("record unconverted files", zap.Error(err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("record files that the filter did not convert: %w", err)
	}
	return nil
}

// MarkUnfiltered records that the driver did not convert a file. key is the cache key of the result that belongs to the
// mount. The record is written before the kernel gets the contents, so that a successor also returns the unconverted
// contents.
func (f *Filters) MarkUnfiltered(key object.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unfiltered[key] {
		return
	}
	f.unfiltered[key] = true
	if f.file == nil {
		return
	}
	if _, err := f.file.WriteString(key.String() + "\n"); err != nil {
		f.log.Warn("record an unconverted file", zap.Error(err))
	}
}

// Left reports whether the driver did not convert the file with this cache key, so that the file stays unconverted.
func (f *Filters) Left(key object.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unfiltered[key]
}

// Owner returns a text that identifies the session and its settings, for the cache keys of results that belong to the
// mount.
func (f *Filters) Owner() string { return f.owner }

// Close stops the programs and closes the record.
func (f *Filters) Close() {
	f.Programs.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}
