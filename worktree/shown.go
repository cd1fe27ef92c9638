package worktree

import (
	"sync"
	"sync/atomic"
)

// shown is what the kernel was told of base nodes: four bits for each, which mean something to package fuse.
type shown struct {
	mu    sync.Mutex
	pages atomic.Pointer[[]*[shownPage / shownInWord]atomic.Uint32]
}

const (
	shownInWord = 8       // nodes
	shownPage   = 1 << 14 // nodes
)

// Shown gives where the four bits of a base node are that package fuse keeps: in the word, above shift. They are 0 unless
// the Tree was taken over.
func (t *Tree) Shown(n Node) (w *atomic.Uint32, shift uint) {
	s, page, in := &t.told, int(n/shownPage), int(n%shownPage)
	pages := s.pages.Load()
	if pages == nil || page >= len(*pages) {
		pages = s.extend(page)
	}
	return &(*pages)[page][in/shownInWord], uint(in % shownInWord * 4)
}

func (s *shown) extend(page int) *[]*[shownPage / shownInWord]atomic.Uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pages []*[shownPage / shownInWord]atomic.Uint32
	if p := s.pages.Load(); p != nil {
		pages = append(pages, *p...)
	}
	for len(pages) <= page {
		pages = append(pages, new([shownPage / shownInWord]atomic.Uint32))
	}
	s.pages.Store(&pages)
	return &pages
}
