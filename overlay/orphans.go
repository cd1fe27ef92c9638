package overlay

import (
	"path/filepath"

	"go.uber.org/zap"
)

// findOrphans moves contents files without an owner to lost+found: a process died after it had created them and before
// the log named them. After a takeover it deletes them instead: the log is complete, and the kernel sends unanswered
// requests again, so these files are known to be dead. Numbers from bound on belong to this process and are skipped.
// Close waits for findOrphans, which only reads directories.
func (l *Layer) findOrphans(owned map[uint64]struct{}, bound uint64, tookOver bool) {
	defer l.busy.Done()
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
		l.log.Warn("contents without an owner may be left", zap.Error(err))
	case found > 0 && !tookOver:
		l.log.Warn("contents without an owner", zap.Int("found", found), zap.String("moved to", filepath.Join(l.dir, "lost+found")))
	}
}
