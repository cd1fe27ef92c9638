package cache

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/object"
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
	twin[19] ^= 1 // the same key as tree, another id
	other, _ := object.FromBytes(twin)
	if _, ok := m.Tree(tree); ok {
		t.Fatal("an empty cache has a tree")
	}
	m.PutTree(tree, []object.TreeEntry{{Name: "a", Mode: object.ModeFile, ID: blob}})
	m.PutContent(blob, []byte("text"))
	m.cache.Wait()
	if got, ok := m.Tree(tree); !ok || len(got) != 1 || got[0].Name != "a" {
		t.Errorf("tree: %v, %v", got, ok)
	}
	if got, ok := m.Content(blob); !ok || string(got) != "text" {
		t.Errorf("content: %q, %v", got, ok)
	}
	if _, ok := m.Tree(blob); ok {
		t.Error("a content is a tree")
	}
	if _, ok := m.Content(tree); ok {
		t.Error("a tree is a content")
	}
	if _, ok := m.Tree(other); ok {
		t.Error("another id with the same key finds the tree")
	}
	empty, _ := numbered(3, 0)
	none, _ := numbered(4, 0)
	m.PutContent(empty, nil)
	m.PutTree(none, nil)
	m.cache.Wait()
	if got, ok := m.Content(empty); !ok || len(got) != 0 {
		t.Errorf("empty content: %q, %v", got, ok)
	}
	if got, ok := m.Tree(none); !ok || len(got) != 0 {
		t.Errorf("empty tree: %v, %v", got, ok)
	}
	if _, err := NewMemory(0); err == nil {
		t.Error("a cache of no bytes was made")
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
		t.Errorf("%d bytes of heap for a limit of %d", grown, limit)
	}
	kept := 0
	for n := range uint64(5000) {
		id, _ := numbered(n, 0)
		if _, ok := m.Content(id); ok {
			kept++
		}
	}
	if kept == 0 {
		t.Error("nothing was kept")
	}
	id, data := numbered(9999, limit/2)
	m.PutContent(id, data)
	m.cache.Wait()
	if _, ok := m.Content(id); ok {
		t.Error("one content takes half of the cache")
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
		t.Error("a closed cache has a content")
	}
}
