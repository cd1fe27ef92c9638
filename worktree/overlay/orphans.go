package overlay

import (
	"path/filepath"

	"go.uber.org/zap"
)

// findOrphans moves contents files without an owner to lost+found. Such a file is left behind if a process dies after
// it has created the file and before the log names the file. After a takeover findOrphans deletes these files instead:
// the log is complete, and the kernel sends unanswered requests again, so no change depends on the files. Files whose
// number is at least the parameter bound belong to this process and are skipped. Close waits for findOrphans.
func (l *Layer) findOrphans(owned map[uint64]struct{}, bound uint64, tookOver bool) {
	defer l.janitor.busy.Done()
	found, end := 0, l.contents.lose
	if tookOver {
		end = l.contents.remove
	}
	err := l.contents.each(0, func(number uint64) error {
		if _, ok := owned[number]; ok || number >= bound {
			return nil
		}
		found++
		return end(number)
	})
	l.searching.Store(err != nil)
	switch {
	case err != nil:
		l.log.Warn("search for contents without a file", zap.Error(err))
	case found > 0 && !tookOver:
		l.log.Warn("moved contents without a file", zap.Int("found", found),
			zap.String("moved to", filepath.Join(l.dir, "lost+found")))
	}
}
