package comparing

import (
	"fmt"
	"testing"

	"github.com/artifactfs/artifactfs/server/gitread"
)

func TestMergesAreLimited(t *testing.T) {
	var m Merges
	for i := range maxMerges + 10 {
		m.add(gitread.TreeMerge{Base: fmt.Sprint(i)}, nil)
	}
	if _, old := m.known[gitread.TreeMerge{Base: "9"}]; old || len(m.known) != maxMerges || len(m.order) != maxMerges {
		t.Errorf("merges: got %d, the oldest: %v", len(m.known), old)
	}
	for i := range 20 {
		m.add(gitread.TreeMerge{Ours: fmt.Sprint(i)}, make([]string, maxPathsOfMerge))
	}
	m.add(gitread.TreeMerge{Ours: "large"}, make([]string, maxPathsOfMerge+1))
	if m.paths != maxCachedPaths || len(m.known) != 10 {
		t.Errorf("after 20 merges with %d conflicts each: got %d paths of %d merges", maxPathsOfMerge, m.paths, len(m.known))
	}
}
