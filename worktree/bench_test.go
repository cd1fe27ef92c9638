package worktree_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// BenchmarkChanges measures operations without the kernel.
func BenchmarkChanges(b *testing.B) {
	files := make(map[string]worktreetest.File)
	for i := range 10_000 {
		files[fmt.Sprintf("dir/f%05d", i)] = worktreetest.File{Data: "data"}
	}
	src := worktreetest.New(files)
	open := func(b *testing.B) (*Tree, Node) {
		dir := b.TempDir()
		tree, err := Open(filepath.Join(dir, "inodes"), src, Options{
			Root: src.Root, Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal"),
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { tree.Close() })
		n, err := tree.Resolve(b.Context(), "dir")
		if err != nil {
			b.Fatal(err)
		}
		return tree, n
	}
	must := func(b *testing.B, err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	b.Run("lookup", func(b *testing.B) {
		tree, dir := open(b)
		_, err := tree.Mknod(b.Context(), dir, "new", syscall.S_IFREG|0o644, 0, Cred{})
		must(b, err)
		for i := 0; b.Loop(); i++ {
			_, err := tree.Lookup(b.Context(), dir, fmt.Sprintf("f%05d", i%10_000))
			must(b, err)
		}
	})
	b.Run("create", func(b *testing.B) {
		tree, dir := open(b)
		for i := 0; b.Loop(); i++ {
			_, err := tree.Mknod(b.Context(), dir, fmt.Sprint("n", i), syscall.S_IFREG|0o644, 0, Cred{})
			must(b, err)
		}
	})
	b.Run("create and remove", func(b *testing.B) {
		tree, dir := open(b)
		for b.Loop() {
			a, err := tree.Mknod(b.Context(), dir, "n", syscall.S_IFREG|0o644, 0, Cred{})
			must(b, err)
			tree.Kernel().Remember(a.Node)
			must(b, tree.Unlink(b.Context(), dir, "n"))
			tree.Kernel().Forget(a.Node, 1)
		}
	})
	b.Run("create and write", func(b *testing.B) {
		tree, dir := open(b)
		data := make([]byte, 4096)
		for i := 0; b.Loop(); i++ {
			a, err := tree.Mknod(b.Context(), dir, fmt.Sprint("n", i), syscall.S_IFREG|0o644, 0, Cred{})
			must(b, err)
			_, err = tree.Write(b.Context(), a.Node, data, 0, false)
			must(b, err)
		}
	})
	b.Run("rename", func(b *testing.B) {
		tree, dir := open(b)
		from, to := "f00001", "other"
		for b.Loop() {
			must(b, tree.Rename(b.Context(), dir, from, dir, to, 0))
			from, to = to, from
		}
	})
	b.Run("list", func(b *testing.B) {
		tree, dir := open(b)
		must(b, tree.Unlink(b.Context(), dir, "f00001"))
		for b.Loop() {
			must(b, tree.ReadDir(b.Context(), dir, 0, func(Entry) bool { return true }))
		}
	})
}
