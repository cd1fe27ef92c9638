package cache

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestMemory(t *testing.T) {
	m, err := NewMemory(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tree, _ := numbered(1, 0)
	blob, _ := numbered(2, 0)
	twin := append([]byte(nil), tree.Bytes()...)
	twin[19] ^= 1 // another id with the same hash key as tree
	other, _ := object.FromBytes(twin)
	if _, ok := m.Tree(tree); ok {
		t.Fatal("an empty cache returned a tree")
	}
	m.PutTree(tree, []object.TreeEntry{{Name: "a", Mode: object.ModeFile, ID: blob}})
	m.PutContent(blob, []byte("text"))
	m.cache.Wait()
	if got, ok := m.Tree(tree); !ok || len(got) != 1 || got[0].Name != "a" {
		t.Errorf("Tree: got %v, %v", got, ok)
	}
	if got, ok := m.Content(blob); !ok || string(got) != "text" {
		t.Errorf("Content: got %q, %v", got, ok)
	}
	if _, ok := m.Tree(blob); ok {
		t.Error("Tree returned contents of a file")
	}
	if _, ok := m.Content(tree); ok {
		t.Error("Content returned a tree")
	}
	if _, ok := m.Tree(other); ok {
		t.Error("another id with the same hash key returned the tree")
	}
	empty, _ := numbered(3, 0)
	none, _ := numbered(4, 0)
	m.PutContent(empty, nil)
	m.PutTree(none, nil)
	m.cache.Wait()
	if got, ok := m.Content(empty); !ok || len(got) != 0 {
		t.Errorf("empty contents: got %q, %v", got, ok)
	}
	if got, ok := m.Tree(none); !ok || len(got) != 0 {
		t.Errorf("empty tree: got %v, %v", got, ok)
	}
	if _, err := NewMemory(0); err == nil {
		t.Error("a cache with a limit of 0 bytes was created")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const limit = 8 << 20
	m, err := NewMemory(limit)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	start := heapInUse()
	for n := range uint64(5000) {
		id, data := numbered(n, 10_000)
		m.PutContent(id, data)
		entries := make([]object.TreeEntry, 50)
		for i := range entries {
			entries[i].Name = fmt.Sprintf("a name of usual length %d", i)
		}
		tree, _ := numbered(1_000_000+n, 0)
		m.PutTree(tree, entries)
	}
	m.cache.Wait()
	if grown := heapInUse() - start; grown > limit*5/4 {
		t.Errorf("heap grew by %d bytes, with a limit of %d", grown, limit)
	}
	kept := 0
	for n := range uint64(5000) {
		id, _ := numbered(n, 0)
		if _, ok := m.Content(id); ok {
			kept++
		}
	}
	if kept == 0 {
		t.Error("the cache kept nothing")
	}
	id, data := numbered(9999, limit/2)
	m.PutContent(id, data)
	m.cache.Wait()
	if _, ok := m.Content(id); ok {
		t.Error("contents of half the size of the cache were kept")
	}
	runtime.KeepAlive(m)
}

func TestMemoryMayBeClosedWhileItIsUsed(t *testing.T) {
	m, err := NewMemory(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	started := make(chan struct{}, 4)
	for w := range uint64(4) {
		wg.Go(func() {
			for n := range uint64(5000) {
				id, data := numbered(w*5000+n, 64)
				m.PutContent(id, data)
				m.Content(id)
				if n == 100 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	m.Close()
	m.Close()
	wg.Wait()
	id, _ := numbered(1, 0)
	if _, ok := m.Content(id); ok {
		t.Error("a closed cache returned contents")
	}
}
