package overlay

import (
	"path/filepath"

	"go.uber.org/zap"
)

// findOrphans moves contents that nobody owns to lost+found: their process died after it had made them and before
// the log named them. Numbers from bound on belong to this process.
// Close waits for it: it reads directories only.
func (l *Layer) findOrphans(owned map[uint64]struct{}, bound uint64) {
	defer l.busy.Done()
	found := 0
	err := l.contents.each(0, func(number uint64) error {
		if _, ok := owned[number]; ok || number >= bound {
			return nil
		}
		found++
		return l.contents.lose(number)
	})
	l.searching.Store(err != nil)
	switch {
	case err != nil:
		l.log.Warn("contents without an owner may be left", zap.Error(err))
	case found > 0:
		l.log.Warn("contents without an owner", zap.Int("found", found), zap.String("moved to", filepath.Join(l.dir, "lost+found")))
	}
}
