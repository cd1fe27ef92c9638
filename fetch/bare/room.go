package bare

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

const (
	// AwaitRoom waits if the repository has at least manyPacks packs. A join takes about one second. In this time, a
	// script requests about twenty objects, each of which adds a pack.
	manyPacks = 40
	roomTime  = 2 * time.Second       // longest wait of AwaitRoom
	roomLook  = 10 * time.Millisecond // interval at which AwaitRoom counts the packs
)

// AwaitRoom waits while the function joining reports that packs are being joined and there are too many of them, so
// that a script that requests one object after the other does not create packs faster than they are joined. It waits
// for at most roomTime, because git also works with many packs, although it is slower.
func (r *Repo) AwaitRoom(ctx context.Context, joining func() bool) {
	for end := time.Now().Add(roomTime); joining() && time.Now().Before(end); {
		files, err := os.ReadDir(filepath.Join(r.Objects(), "pack"))
		packs := 0
		for _, f := range files {
			if filepath.Ext(f.Name()) == ".pack" {
				packs++
			}
		}
		if err != nil || packs < manyPacks {
			return
		}
		select {
		case <-time.After(roomLook):
		case <-ctx.Done():
			return
		}
	}
}
