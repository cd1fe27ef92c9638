package overlay

import (
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// The space of deleted files can be used at once, independent of the janitor. If no space can be freed, the disk is
// full.
func TestRoomOfTheDeletedIsUsed(t *testing.T) {
	for _, op := range []string{"WriteAt", "OpenFile", "Allocate"} {
		t.Run(op, func(t *testing.T) {
			var full, removed atomic.Bool
			w := opened(t, Options{pause: time.Hour, FS: disktest.Faulty(disk.OS, func(o disktest.Op) error {
				if !strings.Contains(filepath.Dir(o.Path), "contents") {
					return nil
				}
				switch o.Name {
				case "Remove":
					removed.Store(true)
				case op:
					if full.Load() && !removed.Load() {
						return syscall.ENOSPC
					}
				}
				return nil
			})})
			w.must(w.create("new"))
			if op != "OpenFile" {
				w.must(w.write("new", 0, []byte("begun")))
			}
			w.must(w.create("old"))
			w.must(w.write("old", 0, []byte("old")))
			do := func() error {
				if op != "Allocate" {
					return w.write("new", 0, []byte("written"))
				}
				f := w.l.File(w.files["new"].node)
				defer f.Done()
				return f.Fallocate(0, 0, 5)
			}
			full.Store(true)
			if err := do(); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("write on a full disk: got %v", err)
			}
			w.must(w.remove("old"))
			w.must(do())
			w.compare()
		})
	}
}
