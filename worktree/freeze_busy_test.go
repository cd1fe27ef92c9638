package worktree_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/artifactfs/artifactfs/worktree"
)

// Every change that was acknowledged before a freeze is in that frozen tree or an earlier one, also while other changes
// are made.
func TestFreezeWhileVeryMuchChanges(t *testing.T) {
	const files, writers, freezes = 400, 4, 200
	w := newWorkspace(t, nil)
	var nodes [files]Node
	var acknowledged [files]atomic.Int64
	number := func(n int64) string { return fmt.Sprintf("%012d", n) }
	for i := range nodes {
		nodes[i] = w.create(fmt.Sprint("file", i), number(0))
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	for k := range writers {
		all.Go(func() {
			for n := int64(1); !stop.Load(); n++ {
				i := rand.IntN(files/writers)*writers + k
				if _, err := w.Write(t.Context(), nodes[i], []byte(number(n)), 0, false); err != nil {
					t.Error(err)
					return
				}
				acknowledged[i].Store(n)
			}
		})
	}
	defer all.Wait()
	defer stop.Store(true)
	var seen [files]int64
	for token, round := "", 0; round < freezes && !t.Failed(); round++ {
		var before [files]int64
		for i := range before {
			before[i] = acknowledged[i].Load()
		}
		f, err := w.Freeze(t.Context(), token, FreezeOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		for _, e := range f.Entries {
			i, err := strconv.Atoi(strings.TrimPrefix(e.Path, "file"))
			if err != nil || e.Kind != FrozenContent {
				t.Errorf("unexpected entry %+v", e)
				continue
			}
			data := make([]byte, e.Size)
			if n, err := e.Content.ReadAt(data, 0); n != len(number(0)) {
				t.Errorf("read frozen contents of %s: got %d bytes: %v", e.Path, n, err)
				continue
			}
			if seen[i], err = strconv.ParseInt(string(data), 10, 64); err != nil {
				t.Error(err)
			}
		}
		token = f.Token
		f.Release()
		lost := 0
		for i := range before {
			if seen[i] < before[i] {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("freeze %d: %d of %d files are older than an acknowledged change", round, lost, files)
		}
	}
}
