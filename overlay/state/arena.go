package state

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory outside the Go heap: the collector neither scans it nor counts it. Blocks are named by refs, which
// stay valid whatever else is allocated, and are rounded up to a size class; a released block waits in the list of
// its class and goes nowhere else.
type arena struct {
	chunks [][]byte
	next   ref // the first granule of the last chunk that was never used
	free   [classes]ref
}

// ref is the number of a granule; 0 is nothing.
type ref uint32

const (
	granule   = 8 // bytes
	chunkSize = 4 << 20
	perChunk  = chunkSize / granule

	fineLimit = 1024 // up to here a class for each granule, above four for each doubling
	classes   = fineLimit/granule + 4*12 + 1
)

// class gives the size class of n bytes and how large its blocks are.
func class(n int) (index, size int) {
	if n <= fineLimit {
		g := max(1, (n+granule-1)/granule)
		return g, g * granule
	}
	log := bits.Len(uint(n-1)) - 1 // 1<<log < n <= 2<<log
	quarter := 1 << (log - 2)
	steps := (n - 1<<log + quarter - 1) / quarter
	return fineLimit/granule + 4*(log-10) + steps, 1<<log + steps*quarter
}

// alloc gives a block of at least n bytes with whatever was in it.
func (a *arena) alloc(n int) ref {
	c, size := class(n)
	if r := a.free[c]; r != 0 {
		a.free[c] = *view[ref](a, r)
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
	*view[ref](a, r) = a.free[c]
	a.free[c] = r
}

func (a *arena) bytes(r ref, n int) []byte {
	off := r % perChunk * granule
	return a.chunks[r/perChunk][off : off+ref(n) : off+ref(n)]
}

// view gives the value that lies at a ref.
func view[T any](a *arena, r ref) *T {
	return (*T)(unsafe.Pointer(&a.chunks[r/perChunk][r%perChunk*granule]))
}

// array gives n values that lie at a ref.
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
