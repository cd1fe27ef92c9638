package state

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory outside the Go heap: the collector neither scans it nor counts it. Blocks are named by refs, which
// stay valid whatever else is allocated, and are rounded up to a size class. A released block waits in the list of
// its class. Of a small one a part may be cut off for a smaller class before new memory is touched: directories that
// grow side by side leave all their former leaves behind.
type arena struct {
	chunks [][]byte
	next   ref // the first granule of the last chunk that was never used
	free   [classes]ref
	listed [(fine + 64) / 64]uint64 // bit c: free[c] is not empty; of the classes up to fine
}

// ref is the number of a granule; 0 is nothing.
type ref uint32

const (
	granule   = 8 // bytes
	chunkSize = 4 << 20
	perChunk  = chunkSize / granule

	fineLimit = 1024 // bytes; up to here a class for each granule, above four for each doubling
	fine      = fineLimit / granule
	classes   = fine + 4*12 + 1
)

// class returns the size class of n bytes and how large its blocks are.
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

// alloc returns a block of at least n bytes with whatever was in it.
func (a *arena) alloc(n int) ref {
	c, size := class(n)
	if a.free[c] != 0 {
		return a.take(c)
	}
	if larger := a.larger(c); larger != 0 {
		r := a.take(larger)
		a.put(r+ref(c), larger-c) // a small class is its number of granules
		return r
	}
	granules := ref(size / granule)
	end := ref(len(a.chunks) * perChunk)
	if end-a.next < granules { // the rest of the chunk was never touched and costs nothing
		a.chunks = append(a.chunks, mapAnonymous(chunkSize))
		a.next = max(end, 1)
		if end == 0 && granules == perChunk { // the first granule of all is nobody's
			return a.alloc(n)
		}
	}
	r := a.next
	a.next += granules
	return r
}

// release takes a block of n bytes back.
func (a *arena) release(r ref, n int) {
	c, _ := class(n)
	a.put(r, c)
}

func (a *arena) put(r ref, c int) {
	*view[ref](a, r) = a.free[c]
	a.free[c] = r
	if c <= fine {
		a.listed[c/64] |= 1 << (c % 64)
	}
}

func (a *arena) take(c int) ref {
	r := a.free[c]
	a.free[c] = *view[ref](a, r)
	if c <= fine && a.free[c] == 0 {
		a.listed[c/64] &^= 1 << (c % 64)
	}
	return r
}

// larger returns the next class above a small one that has a block, or 0.
func (a *arena) larger(c int) int {
	for c++; c <= fine; c = (c | 63) + 1 {
		if word := a.listed[c/64] >> (c % 64); word != 0 {
			return c + bits.TrailingZeros64(word)
		}
	}
	return 0
}

func (a *arena) bytes(r ref, n int) []byte {
	off := r % perChunk * granule
	return a.chunks[r/perChunk][off : off+ref(n) : off+ref(n)]
}

// view returns the value that lies at a ref.
func view[T any](a *arena, r ref) *T {
	return (*T)(unsafe.Pointer(&a.chunks[r/perChunk][r%perChunk*granule]))
}

// array returns n values that lie at a ref.
func array[T any](a *arena, r ref, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(view[T](a, r), n)
}

func (a *arena) close() {
	for _, c := range a.chunks {
		unmap(c)
	}
	*a = arena{}
}

// mapAnonymous takes zeroed memory from the system. That there is none is as fatal as it is to the Go heap.
func mapAnonymous(n int) []byte {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		panic(fmt.Sprintf("state: map %d bytes: %v", n, err))
	}
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // a table of ten files should not cost 2 MiB
	return m
}

func unmap(m []byte) {
	if err := unix.Munmap(m); err != nil {
		panic(fmt.Sprintf("state: unmap: %v", err))
	}
}
