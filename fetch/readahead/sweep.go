package readahead

import (
	"maps"
	"slices"
	"strings"
)

// sweeps reports whether the readers of the series read nearly everything that is fetched, in at least leastDirs different
// parts of the directory scope, which contains all misses of the series. A build that reads all sources of one directory is not
// such a program, because it stays in one part, and neither is one that skips the files of other kinds. The caller holds r.mu.
func (r *Tracker) sweeps() (scope string, ok bool) {
	s := r.series
	for i, p := range r.at {
		// The latest windows may still be in flight, so their readers have not read anything yet.
		if p.read == 0 && i < readers/2 {
			continue
		}
		s.judge(p)
	}
	if s.skipped > 0 || s.swept < leastSwept || len(s.dirs) < leastDirs {
		return "", false
	}
	scope, parts := s.scope()
	return scope, parts >= leastDirs
}

// judge adds the result of the window at p to the series.
func (s *series) judge(p *Position) {
	switch {
	case p.watched == 0 || !s.dirs[p.Path[:strings.LastIndexByte(p.Path, '/')+1]]: // no other file, or of an earlier series
	case 10*p.read >= 8*p.watched:
		s.swept += p.read
	default:
		s.skipped++
	}
}

// scope returns the lowest directory that contains all directories of the series, and the number of its parts in which misses
// were: the directory itself without subdirectories, and its subdirectories.
func (s *series) scope() (scope string, parts int) {
	dirs := slices.Collect(maps.Keys(s.dirs))
	scope = dirs[0]
	for _, d := range dirs {
		for !strings.HasPrefix(d, scope) {
			scope = scope[:strings.LastIndexByte(strings.TrimSuffix(scope, "/"), '/')+1]
		}
	}
	names := map[string]bool{}
	for _, d := range dirs {
		name, _, _ := strings.Cut(d[len(scope):], "/")
		names[name] = true
	}
	return strings.TrimSuffix(scope, "/"), len(names)
}
