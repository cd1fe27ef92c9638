package readahead

import (
	"maps"
	"slices"
	"strings"
)

// sweeps reports whether the readers of the series read nearly all files that are fetched, in at least leastDirs
// different parts of one directory. scope is this directory, the lowest one that contains all misses of the series. The
// result is false for a build that reads all sources of one directory, because it stays in one part, and for a program
// that skips some kinds of files. The caller holds r.mu.
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

// judge adds the counts of the window at position p to the series.
func (s *series) judge(p *Position) {
	switch {
	// ignore a window that contained no other file, or that belongs to an earlier series
	case p.watched == 0 || !s.dirs[p.Path[:strings.LastIndexByte(p.Path, '/')+1]]:
	case 10*p.read >= 8*p.watched:
		s.swept += p.read
	default:
		s.skipped++
	}
}

// scope returns the lowest directory that contains all directories of the series, and the number of parts of this
// directory in which misses occurred. Its parts are the files directly in it, and each of its subdirectories.
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
