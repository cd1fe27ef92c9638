package worktree_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// BenchmarkOpen measures the time until a successor can serve a tree of 100,000 paths that were all looked up, and
// 10,000 changed files.
func BenchmarkOpen(b *testing.B) {
	files := make(map[string]worktreetest.File)
	for i := range 99_000 {
		files[fmt.Sprintf("d%03d/f%06d", i/100, i)] = worktreetest.File{Data: "data"}
	}
	src := worktreetest.New(files)
	src.KnowsSizes.Store(true)
	dir, saved := b.TempDir(), filepath.Join(b.TempDir(), "killed")
	options := func(dir string, over bool) Options {
		return Options{Root: src.Root, Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal"),
			TakeOver: over}
	}
	tree, err := Open(filepath.Join(dir, "inodes"), src, options(dir, false))
	if err != nil {
		b.Fatal(err)
	}
	if err := walk(tree, Root, func(_ string, a Attr) { tree.Kernel().Remember(a.Node) }); err != nil {
		b.Fatal(err)
	}
	made, err := tree.Mkdir(b.Context(), Root, "made", 0o755, Cred{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		a, err := tree.Mknod(b.Context(), made.Node, fmt.Sprint("file", i), syscall.S_IFREG|0o644, 0, Cred{})
		if err != nil {
			b.Fatal(err)
		}
		tree.Kernel().Remember(a.Node)
		tree.Monitor().Writing(a.Node)
		if _, err := tree.Write(b.Context(), a.Node, []byte("data"), 0, false); err != nil {
			b.Fatal(err)
		}
	}
	life := 60_000 // changes that later ones replaced
	for range life {
		a, err := tree.Mknod(b.Context(), made.Node, "short-lived", syscall.S_IFREG|0o644, 0, Cred{})
		if err != nil {
			b.Fatal(err)
		}
		if err := tree.Unlink(b.Context(), made.Node, "short-lived"); err != nil {
			b.Fatal(err)
		}
		tree.Kernel().Remember(a.Node)
		tree.Kernel().Forget(a.Node, 1)
	}
	log := tree.Overlay().Stats().LogBytes
	for end := time.Now().Add(10 * time.Second); log > 6<<20 &&
		time.Now().Before(end); log = tree.Overlay().Stats().LogBytes {
		runtime.Gosched() // the log will be rewritten
	}
	if err := copyLive(saved, dir); err != nil {
		b.Fatal(err)
	}
	if err := tree.Close(); err != nil {
		b.Fatal(err)
	}
	for _, over := range []bool{true, false} {
		b.Run(map[bool]string{true: "taken over", false: "not"}[over], func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var busy time.Duration // processor time of this thread, because the machine may be busy
			for b.Loop() {
				b.StopTimer()
				killed := filepath.Join(b.TempDir(), "killed")
				if err := os.CopyFS(killed, os.DirFS(saved)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				busy -= threadTime()
				tree, err := Open(filepath.Join(killed, "inodes"), src, options(killed, over))
				if err != nil {
					b.Fatal(err)
				}
				busy += threadTime()
				b.StopTimer()
				if tree.Overlay().Recovery().TookOver != over {
					b.Errorf("recovery of the overlay: got %+v", tree.Overlay().Recovery())
				}
				if err := tree.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(log)/1e6, "MB-log")
			b.ReportMetric(busy.Seconds()*1e3/float64(b.N), "cpu-ms/op")
		})
	}
}

// threadTime returns the processor time of this thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
