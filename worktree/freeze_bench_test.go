package worktree_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func openBench(b *testing.B, n int) (*Tree, []Node) {
	files := make(map[string]worktreetest.File)
	for i := range n {
		files[fmt.Sprintf("dir%d/sub%d/f%05d", i%100, i%1000/100, i)] = worktreetest.File{Data: "data"}
	}
	src := worktreetest.New(files)
	dir := b.TempDir()
	tree, err := Open(filepath.Join(dir, "inodes"), src, Options{
		Root: src.Root, Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal"),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { tree.Close() })
	var nodes []Node
	if err := tree.Base().Walk(b.Context(), func(e BaseEntry) error {
		if e.Mode.IsBlob() {
			nodes = append(nodes, e.Attr.Node)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return tree, nodes
}

// BenchmarkFreeze measures a freeze after some changes in a large tree, and the longest time that writers wait.
func BenchmarkFreeze(b *testing.B) {
	run := func(name string, each, writers int, change func(b *testing.B, tree *Tree, nodes []Node, round, i int)) {
		b.Run(name, func(b *testing.B) {
			tree, nodes := openBench(b, 100_000)
			var stop atomic.Bool
			var all sync.WaitGroup
			var waited atomic.Int64
			for w := range writers {
				all.Go(func() {
					a, err := tree.Mknod(b.Context(), Root, fmt.Sprint("writer", w), syscall.S_IFREG|0o644, 0, Cred{})
					for off := int64(0); err == nil && !stop.Load(); off++ {
						begin := time.Now()
						_, err = tree.Write(b.Context(), a.Node, make([]byte, 1000), off%1000*1000, false)
						if took := int64(time.Since(begin)); took > waited.Load() {
							waited.Store(took)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			token := tree.Monitor().StartToken()
			var paused time.Duration
			for round := 0; b.Loop(); round++ {
				b.StopTimer()
				for i := range each {
					change(b, tree, nodes, round, i)
				}
				b.StartTimer()
				f, err := tree.Freeze(b.Context(), token, FreezeOptions{})
				if err != nil {
					b.Fatal(err)
				}
				token, paused = f.Token, max(paused, f.Paused)
				b.StopTimer()
				f.Release()
				b.StartTimer()
			}
			b.ReportMetric(float64(paused.Microseconds())/1000, "ms-paused")
			stop.Store(true)
			all.Wait()
			if writers > 0 {
				b.ReportMetric(float64(waited.Load())/1e6, "ms-write")
			}
		})
	}
	write := func(b *testing.B, tree *Tree, nodes []Node, round, i int) {
		if _, err := tree.Write(b.Context(), nodes[(i*7919+round)%len(nodes)], []byte("new contents"), 0, false); err != nil {
			b.Fatal(err)
		}
	}
	create := func(b *testing.B, tree *Tree, _ []Node, round, i int) {
		dir := Root
		a, err := tree.Lookup(b.Context(), Root, fmt.Sprint("made", round))
		if err != nil {
			a, err = tree.Mkdir(b.Context(), Root, fmt.Sprint("made", round), 0o755, Cred{})
		}
		if dir = a.Node; err == nil {
			a, err = tree.Mknod(b.Context(), dir, fmt.Sprint("f", i), syscall.S_IFREG|0o644, 0, Cred{})
		}
		if err == nil {
			_, err = tree.Write(b.Context(), a.Node, []byte("contents"), 0, false)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	run("nothing", 0, 0, write)
	run("10 written", 10, 0, write)
	run("10 written, 64 writers", 10, 64, write)
	run("10000 made", 10_000, 0, create)
	run("10000 made, 64 writers", 10_000, 64, create)
}
