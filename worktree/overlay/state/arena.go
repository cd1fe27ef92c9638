package state

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena allocates memory outside the Go heap, so that the garbage collector neither scans nor counts it. A ref
// identifies a block and stays valid while other blocks are allocated. Block sizes are rounded up to a size class, and
// a released block is added to the free list of its class. A small allocation may cut a part off a free block of a
// larger class before new memory is used. This saves memory when several directories grow at the same time, because
// each of them releases its smaller leaves one after the other.
type arena struct {
	chunks [][]byte
	// next is the first granule in the last chunk that was never used.
	next ref
	// free holds the first free block of each class. The first bytes of a free block contain the ref of the next free
	// block.
	free [classes]ref
	// listed has a bit for each class up to fine: bit c is set if free[c] is not empty.
	listed [(fine + 64) / 64]uint64
}

// ref is the position of a block in the arena, as the number of its first granule; 0 means no block.
type ref uint32

const (
	granule   = 8 // size of a granule in bytes
	chunkSize = 4 << 20
	perChunk  = chunkSize / granule

	// fineLimit is a size in bytes. Up to this size, every number of granules is a class; above it, each doubling of the
	// size has four classes.
	fineLimit = 1024
	fine      = fineLimit / granule
	classes   = fine + 4*12 + 1
)

// class returns the size class for blocks of n bytes, and the size in bytes of the blocks in that class.
func class(n int) (index, size int) {
	if n <= fineLimit {
		g := max(1, (n+granule-1)/granule)
		return g, g * granule
	}
	log := bits.Len(uint(n-1)) - 1 // 1<<log < n <= 2<<log
	quarter := 1 << (log - 2)
	steps := (n - 1<<log + quarter - 1) / quarter
	return fine + 4*(log-10) + steps, 1<<log + steps*quarter
}

// alloc returns a block of at least n bytes. The contents of the block are undefined.
func (a *arena) alloc(n int) ref {
	c, size := class(n)
	if a.free[c] != 0 {
		return a.take(c)
	}
	if larger := a.larger(c); larger != 0 {
		r := a.take(larger)
		// put the rest of the block back; up to the class fine, the number of a class is the number of granules in its
		// blocks
		a.put(r+ref(c), larger-c)
		return r
	}
	granules := ref(size / granule)
	end := ref(len(a.chunks) * perChunk)
	// If the block does not fit into the rest of the chunk, the rest stays unused. The rest was never accessed, so it uses
	// no physical memory.
	if end-a.next < granules {
		a.chunks = append(a.chunks, mapAnonymous(chunkSize))
		a.next = max(end, 1)
		if end == 0 && granules == perChunk { // start behind granule 0, because the ref 0 means no block
			return a.alloc(n)
		}
	}
	r := a.next
	a.next += granules
	return r
}

// release returns a block that was allocated with n bytes to the free list of its class.
func (a *arena) release(r ref, n int) {
	c, _ := class(n)
	a.put(r, c)
}

// put adds a block to the free list of class c.
func (a *arena) put(r ref, c int) {
	*view[ref](a, r) = a.free[c]
	a.free[c] = r
	if c <= fine {
		a.listed[c/64] |= 1 << (c % 64)
	}
}

// take removes the first block from the free list of class c, which is not empty.
func (a *arena) take(c int) ref {
	r := a.free[c]
	a.free[c] = *view[ref](a, r)
	if c <= fine && a.free[c] == 0 {
		a.listed[c/64] &^= 1 << (c % 64)
	}
	return r
}

// larger returns the smallest class above c, but at most the class fine, that has a free block. It returns 0 if there
// is none.
func (a *arena) larger(c int) int {
	for c++; c <= fine; c = (c | 63) + 1 {
		if word := a.listed[c/64] >> (c % 64); word != 0 {
			return c + bits.TrailingZeros64(word)
		}
	}
	return 0
}

// bytes returns the n bytes at r, which point into the arena.
func (a *arena) bytes(r ref, n int) []byte {
	off := r % perChunk * granule
	return a.chunks[r/perChunk][off : off+ref(n) : off+ref(n)]
}

// view returns a pointer to the value of type T at r.
func view[T any](a *arena, r ref) *T {
	return (*T)(unsafe.Pointer(&a.chunks[r/perChunk][r%perChunk*granule]))
}

// array returns the n values of type T at r, as a slice that points into the arena.
func array[T any](a *arena, r ref, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(view[T](a, r), n)
}

// close unmaps all memory.
func (a *arena) close() {
	for _, c := range a.chunks {
		unmap(c)
	}
	*a = arena{}
}

// mapAnonymous returns n bytes of zeroed memory from the operating system. Like the Go heap, it panics if there is no
// memory.
func mapAnonymous(n int) []byte {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		panic(fmt.Sprintf("state: map %d bytes: %v", n, err))
	}
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // with huge pages, even a table of ten files would use 2 MiB
	return m
}

// unmap returns memory from mapAnonymous to the operating system.
func unmap(m []byte) {
	if err := unix.Munmap(m); err != nil {
		panic(fmt.Sprintf("state: unmap: %v", err))
	}
}
