package comparing

import (
	"context"
	"sync"

	"github.com/artifactfs/artifactfs/server/gitread"
)

// Limits of Merges.
const (
	maxMerges       = 1000
	maxCachedPaths  = 100_000
	maxPathsOfMerge = 10_000 // merges with more conflicts are not kept
)

// Merges is a cache of the results of merges. The ids of the trees determine the result, so it is right for ever and
// for every repository. The zero value is ready to use. The methods may be called from any goroutine.
type Merges struct {
	mu    sync.Mutex
	known map[gitread.TreeMerge][]string
	order []gitread.TreeMerge // the oldest first
	paths int                 // number of paths in known
}

// conflicts returns the same as gitread.Repo.Conflicts. It runs only merges whose results m has not stored yet.
func (m *Merges) conflicts(ctx context.Context, g gitread.Repo, merges []gitread.TreeMerge) ([][]string, error) {
	results := make([][]string, len(merges))
	var rest []gitread.TreeMerge
	var of []int
	m.mu.Lock()
	for i, merge := range merges {
		if paths, ok := m.known[merge]; ok {
			results[i] = paths
			continue
		}
		rest, of = append(rest, merge), append(of, i)
	}
	m.mu.Unlock()
	found, err := g.Conflicts(ctx, rest)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, paths := range found {
		results[of[i]] = paths
		m.add(rest[i], paths)
	}
	return results, nil
}

// add keeps a result. The caller holds mu.
func (m *Merges) add(merge gitread.TreeMerge, paths []string) {
	if _, ok := m.known[merge]; ok || len(paths) > maxPathsOfMerge {
		return
	}
	if m.known == nil {
		m.known = map[gitread.TreeMerge][]string{}
	}
	m.known[merge] = paths
	m.order = append(m.order, merge)
	for m.paths += len(paths); len(m.order) > maxMerges || m.paths > maxCachedPaths; m.order = m.order[1:] {
		m.paths -= len(m.known[m.order[0]])
		delete(m.known, m.order[0])
	}
}
